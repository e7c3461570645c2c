"""Server of the review page, for this machine only.

mien review out
"""

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mien.app.access import LOCAL_HOSTS, OwnPages
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.face_text import agreement_text, percent
from mien.app.inference.records import Face, Photo
from mien.app.labeling.corrections import UNDONE, Correction, Corrections, decision, face_of
from mien.app.labeling.files import CORRECTIONS, LabelingError
from mien.app.labeling.images import encode_jpeg, thumbnail
from mien.app.labeling.inputs import STILL, Sources, printable
from mien.app.labeling.journal import Journal, Result, open_journal
from mien.app.labeling.outputs import update_outputs
from mien.app.labeling.pages import load_page
from mien.data.contract import align
from mien.data.contract.palette import hex_color
from mien.data.quality import REASONS

HOST: Final = "127.0.0.1"
PAGE: Final = 120
_VIEW_PX: Final = 1400
_FOLDER: Final = Path(__file__).parent
_POLICY: Final = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:"}


class Decision(BaseModel):
    """Request of the page: a face with its box, its label, and the decision before, as the page shows them."""

    file: str
    frame: int = STILL
    face: int
    label: str
    box: list[float] | None = None
    before: str | None = None


def serve_review(out: Path, port: int) -> None:
    """Serve the page until Ctrl-C. Raises: LabelingError, such as NoJournal if `out` contains no run."""
    app = create_review_app(out)
    config = uvicorn.Config(app, host=HOST, port=port, log_level="warning", server_header=False)
    server = uvicorn.Server(config)
    server.config.load()
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise LabelingError(f"port {port}: {error.strerror}. Choose another --port.") from error
    print(f"Review page: http://{HOST}:{listening.getsockname()[1]}/  (press Ctrl-C to stop)", flush=True)  # noqa: T201
    before = _size(out)
    try:
        with listening:
            server.run(sockets=[listening])
    finally:  # uvicorn raises the signal again that stopped it
        written = update_outputs(out) if _size(out) != before else []
        print("".join(f"Updated {path}\n" for path in written), end="", flush=True)  # noqa: T201


def _size(out: Path) -> int:
    """Size of the file of corrections, which only grows."""
    path = out / CORRECTIONS
    return path.stat().st_size if path.exists() else 0


def create_review_app(out: Path) -> FastAPI:
    """Application with the page and its API, for one output folder. Raises: LabelingError."""
    journal, corrections = open_journal(out), Corrections(out)

    @asynccontextmanager
    async def closing_view(_app: FastAPI) -> AsyncIterator[None]:
        yield
        journal.close()

    app = FastAPI(title="Mien review", lifespan=closing_view, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(OwnPages)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS, www_redirect=False)
    app.add_exception_handler(LabelingError, _refused)
    _add_faces(app, journal, corrections)

    @app.middleware("http")
    async def show_last_run(request: Request, call_next: Any) -> Any:
        journal.refresh()
        return await call_next(request)

    return app


def _refused(request: Request, error: Exception) -> Response:
    """An error for the pages' scripts as JSON, and for a person who opens a page as text."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": str(error)}, status_code=422)
    return PlainTextResponse(f"{error}\n", status_code=422)


def _add_faces(app: FastAPI, journal: Journal, corrections: Corrections) -> None:
    @app.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(load_page(_FOLDER / "review.html"), headers=_POLICY)

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        counts = journal.count()
        labels, reasons = counts["faces"], counts["reasons"]
        return {
            "folder": printable(str(journal.out.absolute())),
            "file": corrections.path.relative_to(journal.out).as_posix(),
            "labels": [
                {"name": label, "count": labels[label], "color": hex_color(label, journal.expressions)}
                for label in journal.expressions
            ],
            "reasons": [{"name": reason, "count": reasons[reason]} for reason in REASONS if reasons[reason]],
        }

    @app.get("/api/faces")
    def faces(
        label: str = "", reason: str = "", state: str = "open", offset: Annotated[int, Query(ge=0)] = 0
    ) -> dict[str, Any]:
        corrections.refresh()
        # indices in the list of all states, which decisions of others do not move
        numbered = (
            _card(image, face, corrections.of_face(journal, image, face)) | {"index": index}
            for index, (image, face) in enumerate(journal.least_confident(label, reason))
            if index >= offset
        )
        shown = (card for card in numbered if state == "all" or (state == "reviewed") == bool(card["decision"]))
        cards = list(itertools.islice(shown, PAGE))
        return {"faces": cards, "reviewed": len(corrections), "more": len(cards) == PAGE}

    @app.get("/api/thumb")
    def thumb(file: str, face: int, frame: int = STILL) -> Response:
        jpeg = journal.thumb(file, _number(frame), face) or _thumb_of_source(journal, file, frame, face)
        if jpeg is None:
            return Response(status_code=404)
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    @app.get("/api/photo")
    def photo(file: str, frame: int = STILL, face: int | None = None) -> Response:
        image = _image(journal, file, frame)
        with Sources() as sources:
            pixels = sources.open_pixels(image)
        chosen = image.faces if face is None else image.faces[face : face + 1]
        size = image.width or 1, image.height or 1
        drawn = annotate(reduced(pixels, _VIEW_PX), Photo(*size, faces=chosen))
        return Response(encode_jpeg(drawn, 88), media_type="image/jpeg")

    @app.post("/api/decisions")
    def decide(body: Decision) -> Response:
        image = _shown(journal, body)
        decided = decision(image, face_of(image, body.face), body.label)
        corrections.refresh()
        earlier = corrections.of(image).get(body.face)
        current = earlier.label if earlier else UNDONE
        if body.before not in (None, current) and body.label != current:
            shown = "undone" if current == UNDONE else f"decided as {current.replace('_', ' ')}"
            detail = f"{body.file} was {shown} in another tab or by another person. Decide again to change it."
            return JSONResponse({"detail": detail, "decision": current}, status_code=409)
        corrections.append(decided)
        return JSONResponse({"reviewed": len(corrections)})


def _image(journal: Journal, file: str, frame: int) -> Result:
    image = journal.result(file, _number(frame))
    if image is None:
        raise HTTPException(404, f"{file} is not in the last run, reload the page")
    return image


def _shown(journal: Journal, body: Decision) -> Result:
    """The image of a request, if its face is still the one that the page shows."""
    image = _image(journal, body.file, body.frame)
    if body.box is not None and body.box not in ([*face.box] for face in image.faces[body.face : body.face + 1]):
        raise HTTPException(409, "the folder was labeled again, reload the page")
    return image


def _number(frame: int) -> int | None:
    return None if frame == STILL else frame


def _thumb_of_source(journal: Journal, file: str, frame: int, face: int) -> bytes | None:
    """A thumbnail for a run without a report, which has none."""
    image = journal.result(file, _number(frame))
    if image is None or face >= len(image.faces):
        return None
    with Sources() as sources:
        return thumbnail(align(sources.open_pixels(image), image.faces[face].landmarks_px))


def _card(image: Result, face: Face, correction: Correction | None) -> dict[str, Any]:
    """A face for the page."""
    return {
        "face": face.index,
        "file": image.name,
        "frame": STILL if image.frame is None else image.frame,
        "box": [*face.box],
        "decision": correction.label if correction else None,
        "predicted": face.label,
        "confidence": round(face.confidence, 4),
        "percent": percent(face.confidence),
        "agreement": agreement_text(face),
    }
