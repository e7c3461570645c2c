"""`WS /v1/stream`: webcam frames in, faces out.

A client sends each frame as one binary message, a JPEG, and gets one JSON message per processed frame. Frames are
numbered from 0. While a frame is processed, only the newest one is kept, and replaced ones are counted in `dropped`, so
there is never a queue.
"""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, WebSocket, WebSocketDisconnect
from fastapi import Query as InQuery
from pydantic import Field

from mien.app.errors import problem
from mien.app.inference.records import Face, Photo
from mien.app.service.api import IMAGE_ERRORS, UNIQUE_OPTIONS, Service, TheService
from mien.app.service.schema import Milliseconds, ProblemDetails, Record
from mien.app.service.uploads import FaceOptions, LabelOptions

router = APIRouter()
MAX_FRAME_BYTES: Final = 2_000_000
_IDLE_S: Final = 60.0
_SEND_S: Final = 10.0
_GOING_AWAY, _UNSUPPORTED, _TOO_BIG = 1001, 1003, 1009  # RFC 6455, section 7.4.1
_CLOSE_REASONS: Final = {
    _GOING_AWAY: "no frame for a minute, or responses are not read",
    _UNSUPPORTED: "send each frame as a binary message with a JPEG, not as text",
    _TOO_BIG: f"the frame has more than {MAX_FRAME_BYTES:,} bytes",
}


class FrameResult(Record):
    """Response to one frame of a stream; if it could not be read, `error` is set and there are no faces."""

    frame: int = Field(description="which binary message of this connection it was, from 0")
    dropped: int = Field(description="frames of this connection replaced by newer ones so far")
    width: int | None = None
    height: int | None = None
    faces: tuple[Face, ...] = ()
    timings_ms: dict[str, Milliseconds] = Field(
        {}, description="milliseconds per stage: decode, detect, align, classify"
    )
    error: ProblemDetails | None = None


class NewestFrame(asyncio.Queue[tuple[int, bytes]]):
    """Holds one frame, with its number; another replaces it."""

    def __init__(self) -> None:
        super().__init__(1)
        self._count = self.dropped = 0

    def replace(self, payload: bytes) -> bool:
        """Keep a frame as the newest; returns whether it replaced one that was not taken."""
        replaced = self.full()
        if replaced:
            self.get_nowait()
            self.dropped += 1
        self.put_nowait((self._count, payload))
        self._count += 1
        return replaced


@router.websocket("/v1/stream", dependencies=UNIQUE_OPTIONS)
async def stream(websocket: WebSocket, options: Annotated[FaceOptions, InQuery()], service: TheService) -> None:
    """Label the faces of one webcam until either side closes."""
    with service.admission.stream():
        await websocket.accept()
        newest = NewestFrame()
        work = _process(websocket, service, options, newest), _listen(websocket, service, newest)
        tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code = ended.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            # not gather: when canceled, it raises a new error without the message that anyio needs
            await asyncio.wait(tasks)
        if code is not None:
            with suppress(RuntimeError, WebSocketDisconnect):  # the client may have disconnected
                await websocket.close(code, _CLOSE_REASONS[code])


@router.get("/v1/stream", include_in_schema=False)
async def stream_without_upgrade() -> None:
    """Respond to a client that does not request a WebSocket."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    raise HTTPException(HTTPStatus.UPGRADE_REQUIRED, "this is a WebSocket: connect with ws:// or wss://", headers)


async def _listen(websocket: WebSocket, service: Service, newest: NewestFrame) -> int | None:
    """Receive until the client disconnects (None) or must be closed with the returned code."""
    while True:
        try:
            message = await asyncio.wait_for(websocket.receive(), _IDLE_S)
        except TimeoutError:
            return _GOING_AWAY
        if message["type"] == "websocket.disconnect":
            return None
        payload = message.get("bytes")
        if payload is None:
            return _UNSUPPORTED
        if len(payload) > MAX_FRAME_BYTES:
            return _TOO_BIG
        if newest.replace(payload):
            service.metrics.frames.labels("dropped").inc()


async def _process(websocket: WebSocket, service: Service, options: FaceOptions, newest: NewestFrame) -> int | None:
    """Process the newest frames until sending fails (None) or times out (a code)."""
    label_options = LabelOptions(confidence_threshold=options.confidence_threshold)
    while True:
        number, payload = await newest.get()
        try:
            async with service.admission.slot():
                fields = await service.label_image(payload, label_options, _fields, live=True)
            service.metrics.frames.labels("processed").inc()
        except IMAGE_ERRORS as error:
            fields = {"error": ProblemDetails(**problem(error))}
            service.metrics.frames.labels("refused").inc()
        result = FrameResult(frame=number, dropped=newest.dropped, **fields)
        try:
            await asyncio.wait_for(websocket.send_text(result.model_dump_json()), _SEND_S)
        except TimeoutError:
            return _GOING_AWAY
        except (RuntimeError, WebSocketDisconnect):
            return None


def _fields(photo: Photo) -> dict[str, Any]:
    return {"width": photo.width, "height": photo.height, "faces": photo.faces, "timings_ms": photo.timings_ms}
