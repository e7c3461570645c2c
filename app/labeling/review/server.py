"""Server of the review pages, for this machine only.

mien review out
"""

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import cv2
import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel

from mien.app.access import Guard, host_check, origin_check
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.records import Face, Photo
from mien.app.inference.wording import agreement_text, percent
from mien.app.labeling.corrections import UNDONE, Correction, Corrections, decision, face_of
from mien.app.labeling.files import CORRECTIONS, PEOPLE, LabelingError
from mien.app.labeling.images import encode_jpeg, thumbnail
from mien.app.labeling.journal import Journal, open_journal
from mien.app.labeling.outputs import update_outputs
from mien.app.labeling.pages import load_page
from mien.app.labeling.people import People, moments, naming_of
from mien.app.labeling.records import STILL, Result
from mien.app.labeling.review.sample import check_reviewer, decisions_table, draw_sample, find
from mien.app.labeling.review.sources import SourceReader
from mien.app.labeling.scan import printable
from mien.data.contract import Array, align
from mien.data.contract.palette import hex_color
from mien.data.quality import REASONS

HOST: Final = "127.0.0.1"
PAGE: Final = 120
FACES_OF_PERSON: Final = 12
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


class PersonName(BaseModel):
    """Request of the page: the name of the person with a face."""

    file: str
    frame: int
    face: int
    box: list[float] | None = None
    name: str


def serve_review(out: Path, port: int, sample: int = 0, reviewer: str = "") -> None:
    """Serve the page until Ctrl-C. Raises: LabelingError, such as NoJournal if `out` contains no run."""
    app = create_review_app(out, sample, reviewer)
    config = uvicorn.Config(app, host=HOST, port=port, log_level="warning", server_header=False)
    server = uvicorn.Server(config)
    server.config.load()
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise LabelingError(f"port {port}: {error.strerror}. Choose another --port.") from error
    print(f"Review page: http://{HOST}:{listening.getsockname()[1]}/  (press Ctrl-C to stop)", flush=True)  # noqa: T201
    before = _decisions(out)
    try:
        with listening:
            server.run(sockets=[listening])
    finally:  # uvicorn raises the signal again that stopped it
        written = update_outputs(out) if _decisions(out) != before else []
        print("".join(f"Updated {path}\n" for path in written), end="", flush=True)  # noqa: T201


def _decisions(out: Path) -> list[int]:
    """Sizes of the files of decisions, which only grow."""
    return [path.stat().st_size for name in (CORRECTIONS, PEOPLE) if (path := out / name).exists()]


def create_review_app(out: Path, sample: int = 0, reviewer: str = "") -> FastAPI:
    """Application with the pages and their API, for one output folder.

    reviewer: name of the person who decides; needed for a sample, whose faces are labeled without seeing the labels of
        the model.
    Raises: LabelingError.
    """
    if reviewer or sample:
        check_reviewer(reviewer)
    drawn = draw_sample(out, sample) if sample else None
    journal = open_journal(out)
    corrections = Corrections(out, reviewer if sample else "")
    people = People(out)

    @asynccontextmanager
    async def closing_view(_app: FastAPI) -> AsyncIterator[None]:
        yield
        journal.close()

    app = FastAPI(title="Mien review", lifespan=closing_view, docs_url=None, redoc_url=None, openapi_url=None)
    checks = [host_check(["localhost"]), origin_check()]
    app.add_middleware(Guard, checks=checks, refuse=lambda _, error: JSONResponse({"detail": str(error)}, 403))
    app.add_exception_handler(LabelingError, _refused)
    _add_faces(app, journal, corrections, drawn, reviewer)
    _add_people(app, journal, people)

    @app.middleware("http")
    async def show_last_run(request: Request, call_next: Any) -> Any:
        journal.refresh()
        return await call_next(request)

    @app.get("/decisions.csv")
    def decisions() -> Response:
        return Response(decisions_table(out), media_type="text/csv")

    return app


def _refused(request: Request, error: Exception) -> Response:
    """An error for the pages' scripts as JSON, and for a person who opens a page as text."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": str(error)}, status_code=422)
    return PlainTextResponse(f"{error}\n", status_code=422)


def _add_faces(
    app: FastAPI, journal: Journal, corrections: Corrections, sample: list[Correction] | None, reviewer: str
) -> None:
    @app.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(load_page(_FOLDER / "review.html"), headers=_POLICY)

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        labels, reasons = journal.labels(), journal.reasons()
        return {
            "folder": printable(str(journal.out.absolute())),
            "file": corrections.path.relative_to(journal.out).as_posix(),
            "labels": [
                {"name": label, "count": labels[label], "color": hex_color(label, journal.expressions)}
                for label in journal.expressions
            ],
            "reasons": [{"name": reason, "count": reasons[reason]} for reason in REASONS if reasons[reason]],
            "blind": sample is not None,
        }

    @app.get("/api/faces")
    def faces(
        label: str = "", reason: str = "", state: str = "open", offset: Annotated[int, Query(ge=0)] = 0
    ) -> dict[str, Any]:
        corrections.refresh()
        drawn = (find(journal, face) for face in sample or ())
        chosen = journal.least_confident(label, reason) if sample is None else filter(None, drawn)
        # indices in the list of all states, which decisions of others do not move
        numbered = (
            _card(image, face, corrections.of_face(journal, image, face), blind=sample is not None) | {"index": index}
            for index, (image, face) in enumerate(chosen)
            if index >= offset
        )
        shown = (card for card in numbered if state == "all" or (state == "reviewed") == bool(card["decision"]))
        cards = list(itertools.islice(shown, PAGE))
        return {"faces": cards, "reviewed": len(corrections), "more": len(cards) == PAGE}

    @app.get("/api/thumb/{row}/{face}")
    def thumb(row: int, face: int) -> Response:
        jpeg = journal.thumb(row, face) or _thumb_of_source(journal, row, face)
        if jpeg is None:
            return Response(status_code=404)
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    @app.get("/api/photo")
    def photo(file: str, frame: int = STILL, face: int | None = None) -> Response:
        image = _image(journal, file, frame)
        with SourceReader() as reader:
            pixels = reader.pixels(image)
        chosen = image.faces if face is None else image.faces[face : face + 1]
        if sample is not None:
            drawn = _boxed(pixels, [detected.box for detected in chosen])
        else:
            size = image.width or 1, image.height or 1
            drawn = annotate(reduced(pixels, _VIEW_PX), Photo(*size, chosen))
        return Response(encode_jpeg(drawn, 88), media_type="image/jpeg")

    @app.post("/api/decisions")
    def decide(body: Decision) -> Response:
        image = _shown(journal, body)
        decided = decision(image, face_of(image, body.face), body.label, reviewer)
        corrections.refresh()
        earlier = corrections.of(image).get(body.face)
        current = earlier.label if earlier else UNDONE
        if body.before not in (None, current) and body.label != current:
            shown = "undone" if current == UNDONE else f"decided as {current.replace('_', ' ')}"
            detail = f"{body.file} was {shown} in another tab or by another person. Decide again to change it."
            return JSONResponse({"detail": detail, "decision": current}, status_code=409)
        corrections.append(decided)
        return JSONResponse({"reviewed": len(corrections)})


def _add_people(app: FastAPI, journal: Journal, people: People) -> None:
    @app.get("/people")
    def page() -> HTMLResponse:
        return HTMLResponse(load_page(_FOLDER / "people.html"), headers=_POLICY)

    @app.get("/api/people")
    def persons() -> dict[str, Any]:
        people.refresh()
        return {"videos": [_video(journal, people, name) for name in journal.videos()]}

    @app.post("/api/people")
    def name_person(body: PersonName) -> dict[str, Any]:
        people.append(naming_of(_shown(journal, body), body.face, body.name))
        return persons()

    @app.post("/api/timeline")
    def timeline() -> dict[str, list[str]]:
        return {"written": [path.name for path in update_outputs(journal.out, "timeline")]}


def _image(journal: Journal, file: str, frame: int) -> Result:
    image = journal.image(file, frame)
    if image is None:
        raise HTTPException(404, f"{file} is not in the last run, reload the page")
    return image


def _shown(journal: Journal, body: Decision | PersonName) -> Result:
    """The image of a request, if its face is still the one that the page shows."""
    image = _image(journal, body.file, body.frame)
    if body.box is not None and body.box not in ([*face.box] for face in image.faces[body.face : body.face + 1]):
        raise HTTPException(409, "the folder was labeled again, reload the page")
    return image


def _thumb_of_source(journal: Journal, row: int, face: int) -> bytes | None:
    """A thumbnail for a run without a report, which has none."""
    image = journal.image_in(row)
    if image is None or face >= len(image.faces):
        return None
    with SourceReader() as reader:
        return thumbnail(align(reader.pixels(image), image.faces[face].landmarks_px))


def _boxed(pixels: Array, boxes: list[Any]) -> Array:
    """A copy of a photo with the boxes of faces, without their labels."""
    drawn = np.array(pixels)
    width = max(2, max(drawn.shape) // 300)
    for x, y, box_width, box_height in boxes:
        corner = round(x + box_width), round(y + box_height)
        for color, stroke in (((20, 20, 20), 2 * width), ((255, 255, 255), width)):  # seen on every background
            cv2.rectangle(drawn, (round(x), round(y)), corner, color, stroke)
    return reduced(drawn, _VIEW_PX)


def _card(image: Result, face: Face, correction: Correction | None, *, blind: bool) -> dict[str, Any]:
    """A face for the page, without the labels of the model for a blind sample."""
    return {
        "row": image.input.row,
        "face": face.index,
        "file": image.input.name,
        "frame": image.input.frame,
        "box": face.box,
        "decision": correction.label if correction else None,
        "predicted": "" if blind else face.label,
        "confidence": None if blind else round(face.confidence, 4),
        "percent": "" if blind else percent(face.confidence),
        "agreement": "" if blind else agreement_text(face),
    }


def _video(journal: Journal, people: People, name: str) -> dict[str, Any]:
    """People of a video, each with a few faces, evenly in time."""
    persons: dict[int, list[dict[str, Any]]] = {}
    names, unmatched = people.names(journal, name)
    for image, _ in moments(journal, name):
        for face in image.faces:
            where = {"row": image.input.row, "frame": image.frame, "face": face.index, "time_s": image.input.time_s}
            persons.setdefault(face.track, []).append({**where, "box": face.box})
    listed = [
        {
            "number": number,
            "name": names.get(number, ""),
            "frames": len(faces),
            "from_s": faces[0]["time_s"],
            "to_s": faces[-1]["time_s"],
            "faces": [faces[index] for index in _evenly(len(faces))],
        }
        for number, faces in sorted(persons.items())
    ]
    return {"file": name, "people": listed, "unmatched": unmatched}


def _evenly(count: int) -> list[int]:
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, FACES_OF_PERSON))})
