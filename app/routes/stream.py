"""`WS /v1/stream`: webcam frames in, tracked faces out.

A client sends each frame as one binary message, a JPEG, and gets one JSON message per frame that was looked at. The
first frame has number 0. While a frame is at work only the newest that arrives is kept, and the ones it replaces are
counted in `dropped`: a slow service or a slow client never builds a queue.
"""

import asyncio
import time
from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field

from app import answers
from app.errors import CapacityError, ForeignOrigin, QueueFull, RequestError, problem_for
from app.problems import problem_body, problem_response
from app.routes import service_behind
from app.schemas import Fraction, FrameResult, ProblemDetails
from app.security import STREAM_PROTOCOL
from app.service import Answer, Refused, Service
from app.tracking import Tracker
from app.upload import Upload

router = APIRouter()
_IDLE_S: Final = 60.0
_SEND_S: Final = 10.0
_GOING_AWAY, _UNSUPPORTED, _TOO_BIG = 1001, 1003, 1009  # RFC 6455, section 7.4.1


class StreamOptions(BaseModel):
    """Query parameters of a stream; as those of an image."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_face_px: Annotated[float, Field(ge=1, le=100_000)] | None = None
    confidence_threshold: Fraction | None = None


class NewestFrame:
    """A place for one frame. Putting another replaces it."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._frame: tuple[int, bytes] | None = None
        self._count = 0
        self.dropped = 0

    def put(self, payload: bytes) -> bool:
        """Keep a frame as the newest; returns whether it replaced one that nobody had taken."""
        replaced = self._frame is not None
        self.dropped += replaced
        self._frame = (self._count, payload)
        self._count += 1
        self._arrived.set()
        return replaced

    async def take(self) -> tuple[int, bytes]:
        """Wait for a frame; returns its number on this connection and its bytes."""
        await self._arrived.wait()
        self._arrived.clear()
        frame, self._frame = self._frame, None
        if frame is None:
            return await self.take()
        return frame


@router.websocket("/v1/stream")
async def stream(websocket: WebSocket, options: Annotated[StreamOptions, Query()]) -> None:
    """Follow the faces of one webcam until either side closes."""
    service = service_behind(websocket)
    try:
        _check(websocket, service)
    except (RequestError, CapacityError) as error:
        problem = problem_for(error)
        service.metrics.rejections.labels(problem.slug).inc()
        await websocket.send_denial_response(problem_response(problem, str(error)))
        return
    service.streams += 1
    try:
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol=STREAM_PROTOCOL if STREAM_PROTOCOL in offered else None)
        await _serve(websocket, service, options)
    finally:
        service.streams -= 1


def _check(websocket: WebSocket, service: Service) -> None:
    """Refuse a page of another origin, which a browser would let in without asking, and one stream too many."""
    origin = websocket.headers.get("origin")
    allowed = service.settings.cors_origins
    own = websocket.headers.get("host")
    if origin is not None and urlsplit(origin).netloc != own and not {origin, "*"} & set(allowed):
        raise ForeignOrigin(f"origin {origin[:100]}: only pages of this service may open a stream")
    if service.streams >= service.settings.max_streams:
        raise QueueFull(f"{service.settings.max_streams} streams are open: try again in a moment")


async def _serve(websocket: WebSocket, service: Service, options: StreamOptions) -> None:
    newest = NewestFrame()
    look = asyncio.ensure_future(_look(websocket, service, options, newest))
    listen = asyncio.ensure_future(_listen(websocket, service, newest))
    try:
        await asyncio.wait({look, listen}, return_when=asyncio.FIRST_COMPLETED)
        code = listen.result() if listen.done() else look.result()
    finally:
        for task in (look, listen):
            task.cancel()
        # wait, not gather: cancelled itself, gather raises anew and drops the word of who cancelled, which anyio needs
        ended, _ = await asyncio.wait({look, listen})
        for task in ended:
            if not task.cancelled():
                task.exception()  # looked at, so that asyncio does not warn of one that nobody saw
    if code is not None:
        with suppress(RuntimeError, WebSocketDisconnect):  # the client may have left meanwhile
            await websocket.close(code)


async def _listen(websocket: WebSocket, service: Service, newest: NewestFrame) -> int | None:
    """Receive until the client leaves (None), or is to be closed with the returned code."""
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
        if len(payload) > service.settings.max_frame_bytes:
            return _TOO_BIG
        if newest.put(payload):
            service.metrics.frames.labels("dropped").inc()


async def _look(websocket: WebSocket, service: Service, options: StreamOptions, newest: NewestFrame) -> int | None:
    """Answer the newest frame, again and again, until sending fails (None) or takes too long (a code)."""
    threshold = options.confidence_threshold
    if threshold is None:
        threshold = service.pipeline.classifier.manifest.abstain_threshold
    tracker = Tracker(threshold)
    while True:
        number, payload = await newest.take()
        at_s = time.monotonic()
        async with service.admission.turn():
            (answer,) = await service.answer([Upload(None, payload)], min_face_px=options.min_face_px)
        service.metrics.frames.labels("refused" if isinstance(answer, Refused) else "answered").inc()
        result = _result(number, newest.dropped, answer, tracker, at_s)
        try:
            await asyncio.wait_for(websocket.send_text(result.model_dump_json()), _SEND_S)
        except TimeoutError:
            return _GOING_AWAY
        except (RuntimeError, WebSocketDisconnect):
            return None


def _result(number: int, dropped: int, answer: Answer, tracker: Tracker, at_s: float) -> FrameResult:
    if isinstance(answer, Refused):
        problem = ProblemDetails.model_validate(problem_body(problem_for(answer.error), str(answer.error)))
        return FrameResult(
            frame=number, dropped=dropped, width=None, height=None, faces=[], timings_ms={}, error=problem
        )
    analysis = answer.analysis
    return FrameResult(
        frame=number,
        dropped=dropped,
        width=analysis.width,
        height=analysis.height,
        faces=[answers.tracked_result(one) for one in tracker.update(analysis.faces, at_s)],
        timings_ms=answers.stage_timings(analysis),
    )
