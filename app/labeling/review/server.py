"""Server of the review page, for this machine only.

mien review out
"""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.pipeline import Analysis
from mien.app.inference.wording import percent
from mien.app.labeling.files import LabelingError
from mien.app.labeling.images import encode_jpeg
from mien.app.labeling.records import STILL, Result
from mien.app.labeling.review.corrections import DECISIONS, Correction, Corrections, decision
from mien.app.labeling.review.sources import SourceReader
from mien.app.labeling.view import View, open_view
from mien.data.contract.palette import hex_color

HOST: Final = "127.0.0.1"
PAGE: Final = 120
_VIEW_PX: Final = 1400
_TEMPLATE: Final = Path(__file__).with_name("review.html")


class Decision(BaseModel):
    """Request of the page: a face and its label."""

    file: str
    frame: int = STILL
    face: int
    label: str


def serve_review(out: Path, port: int) -> None:
    """Serve the page until Ctrl-C. Raises: FileNotFoundError, if `out` contains no run."""
    app = create_review_app(out)
    config = uvicorn.Config(app, host=HOST, port=port, log_level="warning", server_header=False)
    server = uvicorn.Server(config)
    server.config.load()
    socket = config.bind_socket()
    print(f"Review page: http://{HOST}:{socket.getsockname()[1]}/  (press Ctrl-C to stop)", flush=True)  # noqa: T201
    server.run(sockets=[socket])


def create_review_app(out: Path) -> FastAPI:
    """Application with the page and its API, for one output folder. Raises: NoJournal."""
    view, corrections = open_view(out, filtered=False), Corrections(out)
    app = FastAPI(title="Mien review", docs_url=None, redoc_url=None, openapi_url=None)
    # Otherwise, a page of another site could reach this port by DNS rebinding.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost", "testserver"])
    _add_page(app, view, out)
    _add_faces(app, view, corrections)
    _add_decisions(app, view, corrections)
    return app


def _add_page(app: FastAPI, view: View, out: Path) -> None:
    @app.get("/")
    def page() -> HTMLResponse:
        text = _TEMPLATE.read_text(encoding="utf-8")
        headers = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:"}
        return HTMLResponse(text, headers=headers)

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        view.refresh()
        counts = view.labels()
        return {
            "folder": str(out.absolute()),
            "model": view.model,
            "precision": view.precision,
            "detector": view.detector,
            "labels": [
                {"name": label, "count": counts.get(label, 0), "color": hex_color(label)} for label in view.expressions
            ],
        }


def _add_faces(app: FastAPI, view: View, corrections: Corrections) -> None:
    @app.get("/api/faces")
    def faces(label: str = "", state: str = "open", offset: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
        view.refresh()
        corrections.refresh()
        cards = list(itertools.islice(_cards(view, corrections, label, state), offset, offset + PAGE))
        return {"faces": cards, "reviewed": len(corrections), "more": len(cards) == PAGE}

    @app.get("/api/thumb/{row}/{face}")
    def thumb(row: int, face: int) -> Response:
        jpeg = view.thumb(row, face)
        if jpeg is None:
            return Response(status_code=404)
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "max-age=3600"})

    @app.get("/api/photo")
    def photo(file: str, frame: int = STILL, face: int | None = None) -> Response:
        view.refresh()
        image = view.image(file, frame)
        if image is None:
            return JSONResponse({"detail": "no such image"}, status_code=404)
        try:
            with closing(SourceReader()) as reader:
                pixels = reader.pixels(image)
        except LabelingError as error:
            return JSONResponse({"detail": str(error)}, status_code=410)
        drawn = annotate(reduced(pixels, _VIEW_PX), _analysis(view, image, face))
        return Response(encode_jpeg(drawn, 88), media_type="image/jpeg")


def _cards(view: View, corrections: Corrections, label: str, state: str) -> Iterator[dict[str, Any]]:
    """Faces in review order; `state` is open, reviewed or all."""
    matched: dict[int, dict[int, Correction]] = {}  # by row and number, for images with decisions
    for row, number, name, frame, predicted, confidence, sha256 in view.least_confident(label):
        if corrections.has(sha256, frame) and row not in matched:
            image = view.image(name, frame)
            matched[row] = corrections.of(image) if image else {}
        correction = matched.get(row, {}).get(number)
        if (state == "open" and correction) or (state == "reviewed" and not correction):
            continue
        yield {
            "row": row,
            "face": number,
            "file": name,
            "frame": frame,
            "predicted": predicted,
            "confidence": round(confidence, 4),
            "percent": percent(confidence),
            "decision": correction.label if correction else None,
        }


def _add_decisions(app: FastAPI, view: View, corrections: Corrections) -> None:
    @app.post("/api/decisions")
    def decide(request: Request, body: Decision) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.url.scheme}://{request.url.netloc}":
            return JSONResponse({"detail": "only this page may send decisions"}, status_code=403)
        view.refresh()
        image = view.image(body.file, body.frame)
        if image is None:
            return JSONResponse({"detail": "no such image"}, status_code=404)
        try:
            corrections.append(decision(image, body.face, body.label))
        except LabelingError as error:
            return JSONResponse({"detail": str(error), "expected": DECISIONS}, status_code=422)
        return JSONResponse({"reviewed": len(corrections)})


def _analysis(view: View, image: Result, only: int | None) -> Analysis:
    """Stored faces of an image for drawing: all, or one of them."""
    chosen = image.faces if only is None else image.faces[only : only + 1]
    return Analysis(image.width or 1, image.height or 1, chosen, view.detector, view.model, "", {})
