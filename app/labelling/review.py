"""How do people correct labels? A page for this machine only, and the corrected faces as a data set for training.

python -m app review out
python -m app review out --export faces && python -m data check folders faces
"""

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app.detect import Face
from app.draw import COLOURS, annotate, reduced
from app.labelling.class_folders import write_class_folders
from app.labelling.containers import BrokenContainer, read_member
from app.labelling.corrections import (
    DECISIONS,
    NOT_A_FACE,
    Correction,
    Key,
    append_correction,
    applies,
    decision,
    read_corrections,
)
from app.labelling.files import LabellingError
from app.labelling.products import crop_path, encode_jpeg, encode_png, flat_crop_name
from app.labelling.records import STILL
from app.labelling.view import Picture, View, open_view
from app.pipeline import Analysis, LabelledFace
from data import contract
from data.contract import LABELS, Array, DecodeError

HOST: Final = "127.0.0.1"
PAGE: Final = 120
_VIEW_PX: Final = 1400
_MANIFEST: Final = "manifest.csv"
_TEMPLATE: Final = Path(__file__).with_name("review.html")


class Decision(BaseModel):
    """What the page sends: which face, and what it is."""

    file: str
    frame: int = STILL
    face: int
    label: str


def serve_review(out: Path, port: int) -> None:
    """Serve the page until Ctrl-C. Raises: FileNotFoundError, where `out` holds no run."""
    app = create_review_app(out)
    config = uvicorn.Config(app, host=HOST, port=port, log_level="warning", server_header=False)
    server = uvicorn.Server(config)
    server.config.load()
    socket = config.bind_socket()
    print(f"Review page: http://{HOST}:{socket.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)  # noqa: T201
    server.run(sockets=[socket])


def create_review_app(out: Path) -> FastAPI:
    """The page and its few calls, for one output folder. Raises: FileNotFoundError."""
    view = open_view(out)
    app = FastAPI(title="Mien review", docs_url=None, redoc_url=None, openapi_url=None)
    # A page of another site could otherwise reach this port under a name of its own.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost", "testserver"])
    _add_page(app, view)
    _add_faces(app, view, out)
    _add_decisions(app, view, out)
    return app


def _add_page(app: FastAPI, view: View) -> None:
    @app.get("/")
    def page() -> HTMLResponse:
        text = _TEMPLATE.read_text(encoding="utf-8")
        headers = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:"}
        return HTMLResponse(text, headers=headers)

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        colours = {label: "#" + "".join(f"{part:02x}" for part in COLOURS[label]) for label in LABELS}
        counts = view.labels()
        return {
            "model": view.model,
            "detector": view.detector,
            "labels": [{"name": label, "count": counts.get(label, 0), "colour": colours[label]} for label in LABELS],
        }


def _add_faces(app: FastAPI, view: View, out: Path) -> None:
    @app.get("/api/faces")
    def faces(label: str = "", state: str = "open", offset: int = 0) -> dict[str, Any]:
        decided = read_corrections(out)
        cards = list(itertools.islice(_cards(view, decided, label, state), offset, offset + PAGE))
        return {"faces": cards, "reviewed": len(decided), "more": len(cards) == PAGE}

    @app.get("/api/thumb/{row}/{face}")
    def thumb(row: int, face: int) -> Response:
        jpeg = view.thumb(row, face)
        if jpeg is None:
            return Response(status_code=404)
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "max-age=3600"})

    @app.get("/api/photo")
    def photo(file: str, frame: int = STILL, face: int | None = None) -> Response:
        picture = view.picture(file, frame)
        if picture is None:
            return JSONResponse({"detail": "no such picture"}, status_code=404)
        try:
            pixels = source_pixels(picture)
        except LabellingError as error:
            return JSONResponse({"detail": str(error)}, status_code=410)
        drawn = annotate(reduced(pixels, _VIEW_PX), _analysis(view, picture, face))
        return Response(encode_jpeg(drawn, 88), media_type="image/jpeg")


def _cards(view: View, decided: dict[Key, Correction], label: str, state: str) -> Iterator[dict[str, Any]]:
    """Faces in the order of review; `state` is open, reviewed or all."""
    for row, number, name, frame, predicted, confidence, sha256 in _least_confident(view, label):
        made = decided.get((name, frame, number))
        made = made if made is not None and made.file_sha256 == (sha256 or "") else None
        if (state == "open" and made) or (state == "reviewed" and not made):
            continue
        yield _card(row, number, name, frame, predicted, confidence, made)


def _least_confident(view: View, label: str) -> Iterator[tuple[Any, ...]]:
    where = "AND f.label=?" if label in LABELS else ""
    yield from view.journal.query(
        "SELECT i.id, f.face, i.name, i.frame, f.label, f.confidence, i.sha256 FROM faces f JOIN items i "  # noqa: S608
        f"ON i.id=f.item WHERE i.found=? AND i.status='ok' {where} ORDER BY f.confidence, i.name, i.frame, f.face",
        (view.journal.session, label) if where else (view.journal.session,),
    )


def _card(
    row: int, number: int, name: str, frame: int, predicted: str, confidence: float, made: Correction | None
) -> dict[str, Any]:
    return {
        "row": row,
        "face": number,
        "file": name,
        "frame": frame,
        "predicted": predicted,
        "confidence": round(confidence, 4),
        "decision": made.label if made else None,
    }


def _add_decisions(app: FastAPI, view: View, out: Path) -> None:
    @app.post("/api/decisions")
    def decide(request: Request, body: Decision) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.url.scheme}://{request.url.netloc}":
            return JSONResponse({"detail": "only this page may send decisions"}, status_code=403)
        picture = view.picture(body.file, body.frame)
        if picture is None:
            return JSONResponse({"detail": "no such picture"}, status_code=404)
        try:
            append_correction(out, decision(picture, body.face, body.label))
        except LabellingError as error:
            return JSONResponse({"detail": str(error), "expected": DECISIONS}, status_code=422)
        return JSONResponse({"reviewed": len(read_corrections(out))})


def source_pixels(picture: Picture) -> Array:
    """The picture's pixels, read from its source once more, (H, W, 3) uint8 RGB.

    Raises: LabellingError, where the source is gone or was changed.
    """
    try:
        if picture.kind == "file":
            with open(picture.path, "rb") as file:
                payload: bytes | Array = file.read()
        else:
            payload = read_member(picture.path, picture.kind, picture.member or 0, picture.frame)
        pixels = contract.decode(payload) if isinstance(payload, bytes) else payload
    except (OSError, BrokenContainer, DecodeError) as error:
        raise LabellingError(f"{picture.name} can no longer be read ({error}): label the folder again.") from error
    if pixels.shape[:2] != (picture.height, picture.width):
        raise LabellingError(f"{picture.name} is another picture than was labelled: label the folder again.")
    return pixels


def _analysis(view: View, picture: Picture, only: int | None) -> Analysis:
    """What was stored of a picture, for drawing: all faces, or one of them."""
    chosen = picture.faces if only is None else picture.faces[only : only + 1]
    faces = tuple(
        LabelledFace(
            face=Face(one.box_px, one.landmarks_px, one.score),
            probabilities=one.probabilities,
            label=one.label,
            confidence=one.confidence,
            uncertain=one.uncertain,
            roll_degrees=one.roll_degrees,
            crop=np.empty((0, 0, 3), np.uint8),
        )
        for one in chosen
    )
    return Analysis(picture.width or 1, picture.height or 1, faces, view.detector, view.model, "", {})


def write_export(out: Path, target: Path, *, everything: bool) -> str:
    """Write reviewed faces as class folders (all faces with `everything`, unreviewed ones by the model's label).

    Crops are those in `crops/` where they were written, else they are cut from the sources again, by the same function.
    Returns: a sentence on what was written. Raises: LabellingError, FileNotFoundError.
    """
    if target.exists() and any(target.iterdir()) and not (target / _MANIFEST).exists():
        raise LabellingError(f"{target} holds other files: export into a new or empty folder.")
    view = open_view(out)
    try:
        rows: list[dict[str, Any]] = []
        target.parent.mkdir(parents=True, exist_ok=True)
        crops = _exported(view, out, everything=everything, rows=rows)
        count = write_class_folders(target.parent, target, crops, link=False)
    finally:
        view.close()
    table = io.StringIO()
    writer = csv.DictWriter(table, ["picture", "label", "predicted", "reviewed", "file", "frame", "face"])
    writer.writeheader()
    writer.writerows(rows)
    (target / _MANIFEST).write_text(table.getvalue(), encoding="utf-8")
    reviewed = sum(row["reviewed"] == "true" for row in rows)
    return f"{count} faces in {target}, {reviewed} of them reviewed. Check: python -m data check folders {target}"


def _exported(
    view: View, out: Path, *, everything: bool, rows: list[dict[str, Any]]
) -> Iterator[tuple[str, str, Path | bytes]]:
    decided = read_corrections(out)
    for picture in view.pictures():
        pixels: Array | None = None
        for number, face in enumerate(picture.faces):
            made = decided.get((picture.name, picture.frame, number))
            reviewed = made is not None and applies(made, picture)
            label = made.label if made is not None and reviewed else face.label
            if label == NOT_A_FACE or not (reviewed or everything):
                continue
            source: Path | bytes = crop_path(out, picture.name, picture.frame, number)
            if not Path(str(source)).exists():
                pixels = source_pixels(picture) if pixels is None else pixels
                source = encode_png(contract.align(pixels, face.landmarks_px))
            name = flat_crop_name(picture.name, picture.frame, number)
            rows.append(
                {
                    "picture": f"train/{label}/{name}",
                    "label": label,
                    "predicted": face.label,
                    "reviewed": str(reviewed).lower(),
                    "file": picture.name,
                    "frame": picture.frame_or_none,
                    "face": number,
                }
            )
            yield label, name, source
