"""Server of the review page, for this machine only.

mien review out
"""

import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal
from urllib.parse import urlencode

import filelock
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mien.app.errors import LabelingError
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.records import Face, Photo
from mien.app.labeling.copies import disk_errors, encode_jpeg, thumbnail
from mien.app.labeling.inputs import CORRECTIONS, STATE_DIR, Sources
from mien.app.labeling.journal import NOT_A_FACE, UNDONE, Correction, Journal, Result, is_whole, open_journal
from mien.app.labeling.report import card, render_page
from mien.app.labeling.tables import update_reviewed
from mien.data.contract import align

HOST: Final = "127.0.0.1"
PAGE: Final = 120
_VIEW_PX: Final = 1400
_POLICY: Final = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:"}
State = Literal["", "open", "reviewed"]


class Decision(BaseModel):
    """Request of the page: a face with its box, its label, and the decision before, as the page shows them."""

    file: str
    frame: int | None = None
    face: int
    label: str
    box: list[float] | None = None
    before: str | None = None


class Filters(BaseModel):
    """Query of the page: which faces to show; confidences in percent."""

    label: str = ""
    low: float = 0
    high: float = 100
    reason: str = ""
    state: State = ""
    offset: Annotated[int, Query(ge=0)] = 0

    def show(self, face: Face, correction: Correction | None) -> bool:
        """Return whether a face is shown; its reasons are those of the query."""
        label = face.label if correction is None else correction.label
        return (
            self.label in ("", label)
            and self.low <= 100 * face.confidence <= self.high
            and (not self.state or (self.state == "reviewed") == (correction is not None))
        )


def serve_review(out: Path, port: int) -> None:
    """Serve the page until Ctrl-C. Raises: LabelingError, for example if `out` contains no run."""
    config = uvicorn.Config(create_review_app(out), host=HOST, port=port, log_level="warning", server_header=False)
    config.load()
    server = uvicorn.Server(config)
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise LabelingError(f"port {port}: {error.strerror}. Choose another --port.") from error
    print(f"Review page: http://{HOST}:{listening.getsockname()[1]}/  (press Ctrl-C to stop)", flush=True)  # noqa: T201
    before = _size(out)
    with listening, suppress(KeyboardInterrupt):  # Uvicorn raises the signal again that stopped it.
        server.run(sockets=[listening])
    written = update_reviewed(out) if _size(out) != before else []
    print("".join(f"Updated {path}\n" for path in written), end="", flush=True)  # noqa: T201


def _size(out: Path) -> int:
    """Size of the file of corrections, which only grows."""
    path = out / CORRECTIONS
    return path.stat().st_size if path.exists() else 0


def create_review_app(out: Path) -> FastAPI:
    """Application with the page and its API, for one output folder. Raises: LabelingError."""
    journal = open_journal(out)

    @asynccontextmanager
    async def closing_journal(_app: FastAPI) -> AsyncIterator[None]:
        yield
        journal.close()

    def show_last_run() -> None:
        journal.refresh()
        journal.corrections.refresh()

    app = FastAPI(lifespan=closing_journal, dependencies=[Depends(show_last_run)], openapi_url=None)
    # FastAPI takes decisions only as application/json, which pages of other sites cannot send.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST], www_redirect=False)
    app.add_exception_handler(LabelingError, _refused)

    @app.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(render_page(journal, review=True), headers=_POLICY)

    @app.get("/api/faces")
    def faces(filters: Annotated[Filters, Query()]) -> dict[str, Any]:
        cards = list(itertools.islice(_chosen(journal, filters), PAGE + 1))
        return {"faces": cards[:PAGE], "more": len(cards) > PAGE}

    @app.get("/api/thumb")
    def thumb(file: str, face: int, frame: int | None = None) -> Response:
        image = _image(journal, file, frame)
        return Response(
            journal.thumb(image, face) or _thumb_of_source(image, face),
            media_type="image/jpeg",
            headers={"Cache-Control": "no-store"},
        )

    @app.get("/api/photo")
    def photo(file: str, frame: int | None = None, face: int | None = None) -> Response:
        image = _image(journal, file, frame)
        with Sources() as sources:
            pixels = sources.open_pixels(image)
        shown = Photo(image.width or 1, image.height or 1, faces=image.faces if face is None else (image.face(face),))
        return Response(encode_jpeg(annotate(reduced(pixels, _VIEW_PX), shown), 88), media_type="image/jpeg")

    @app.post("/api/decisions")
    def decide(body: Decision) -> Response:
        return _decide(journal, body)

    return app


def _decide(journal: Journal, body: Decision) -> Response:
    """Save a decision, if the page shows the face and its last decision as they are."""
    image = _image(journal, body.file, body.frame)
    face = image.face(body.face)
    if body.box not in (None, [*face.box]):
        raise HTTPException(409, "the folder was labeled again, reload the page")
    if body.label not in (choices := (*face.probabilities, NOT_A_FACE, UNDONE)):
        raise LabelingError(f"label {body.label!r}: expected one of {', '.join(choices)}")
    earlier = journal.corrections.of(image).get(body.face)
    current = earlier.label if earlier else UNDONE
    if body.before not in (None, current) and body.label != current:
        shown = "undone" if current == UNDONE else f"decided as {current.replace('_', ' ')}"
        detail = f"{body.file} was {shown} in another tab or by another person. Decide again to change it."
        return JSONResponse({"detail": detail, "decision": current}, status_code=409)
    sha256, frame = image.key
    append(journal.out, Correction(image.name, frame, face.index, sha256, face.label, body.label, tuple(face.box)))
    return JSONResponse({"decision": body.label})


def append(out: Path, correction: Correction) -> None:
    """Append a decision and sync it to disk. Raises: DiskFull; LabelingError, if the folder cannot be written."""
    state = out / STATE_DIR
    with disk_errors(out):
        state.mkdir(exist_ok=True)  # With its parents, a folder that was moved would be created again.
        # Without the lock, a line that another writer has written half would be taken for a truncated one.
        with filelock.FileLock(state / f"{CORRECTIONS}.lock"), (out / CORRECTIONS).open("a+b") as file:
            _end_last_line(file)
            file.write(json.dumps(asdict(correction), ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _end_last_line(file: BinaryIO) -> None:
    """Add the line feed that an editor left out, or remove a truncated line, which would corrupt the next one."""
    if not file.tell():
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    lines = file.read()
    last = lines.rpartition(b"\n")[2]
    if is_whole(last):
        file.write(b"\n")
    else:
        file.truncate(len(lines) - len(last))


def _refused(request: Request, error: Exception) -> Response:
    """An error for the page's script as JSON, and for a person who opens a page as text."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": str(error)}, status_code=422)
    return PlainTextResponse(f"{error}\n", status_code=422)


def _chosen(journal: Journal, filters: Filters) -> Iterator[dict[str, Any]]:
    """Cards, least certain first, with their number in the list without the filter by decisions."""
    label = filters.label if filters.state == "open" else ""  # A decision may have given another one.
    for index, (image, face) in enumerate(journal.least_confident(label, filters.reason)):
        correction = journal.corrections.of(image).get(face.index) if index >= filters.offset else None
        if index >= filters.offset and filters.show(face, correction):
            place = {"file": image.name, "face": face.index} | ({} if image.frame is None else {"frame": image.frame})
            thumb = f"/api/thumb?{urlencode(place)}"
            yield card(journal, image, face, correction, thumb=thumb) | {"index": index}


def _image(journal: Journal, file: str, frame: int | None) -> Result:
    image = journal.result(file, frame)
    if image is None:
        raise HTTPException(404, f"{file} is not in the last run, reload the page")
    return image


def _thumb_of_source(image: Result, face: int) -> bytes:
    """A thumbnail for a run without a report, which has none."""
    with Sources() as sources:
        return thumbnail(align(sources.open_pixels(image), image.face(face).landmarks_px))
