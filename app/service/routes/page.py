"""`/`: the page with live camera and photos; `/card`: the model card; `/sw.js`: the service worker. All are files here.

`/page/facts.json` has the labels, thresholds and rules of the program (app/inference/in_browser.py). If ONNX Runtime
Web has been fetched into `RUNTIME`, `/page/models/` has the graphs to label in the browser without sending a picture.
"""

import json
import re
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path, PureWindowsPath
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from markdown_it import MarkdownIt
from starlette.datastructures import Headers
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from mien.app.inference.in_browser import BrowserPipeline
from mien.app.inference.labeler import Labeler
from mien.app.service.middleware import PART
from mien.app.service.routes import TheService
from mien.app.service.routes.expressions import image_result
from mien.app.service.routes.models import CARD_NAME
from mien.app.service.schemas import LabelOptions
from mien.app.service.state import Service

router = APIRouter(include_in_schema=False)
FILES: Final = Path(__file__).parents[2] / "static" / "page"
RUNTIME: Final = FILES / "runtime"
_SAMPLE: Final = FILES / "samples" / "photo.jpg"
# blob: for videos that the user chooses, read from the disk, and pictures that the page has drawn; nothing is sent.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "media-src 'self' blob:; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
# Only workers compile WebAssembly.
_WORKER_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'"
)
_HEADERS: Final = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Embedder-Policy": "require-corp",  # isolated, so that WebAssembly may use threads
}


class Assets(StaticFiles):
    """Scripts and styles of the page; browsers revalidate them on each use."""

    def __init__(self) -> None:
        super().__init__(directory=FILES)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if isinstance(response, FileResponse) and (part := PART.fullmatch(Headers(scope=scope).get("range", ""))):
            size = int(response.headers["Content-Length"])
            if not int(part[1]) < size or int(part[2]) < int(part[1]):
                raise HTTPException(416, headers={"Content-Range": f"bytes */{size}"})
        response.headers["Cache-Control"] = "no-cache"
        # WebKit wants it for each module that a worker imports, and workers import modules of the whole page
        response.headers["Cross-Origin-Embedder-Policy"] = "require-corp"
        if starts_worker(path):
            response.headers["Content-Security-Policy"] = _WORKER_POLICY
        return response


def starts_worker(path: str) -> bool:
    """Whether a script is that of a worker; `path` is relative to `FILES`, with the separator of any system."""
    return PureWindowsPath(path).parts[0] in {"local", "runtime"}


@router.get("/")
async def page() -> Response:
    """Live camera and photos."""
    return FileResponse(FILES / "index.html", media_type="text/html", headers=_HEADERS)


@router.get("/card")
def card(service: TheService) -> Response:
    """Page with the card of the default model; its Markdown text is `/v1/models/{name}/card`."""
    return HTMLResponse(card_page(service.default.classifier.folder / CARD_NAME), headers=_HEADERS)


@router.get("/sw.js")
async def service_worker() -> Response:
    """Script that lets the page work offline; it controls the folder that it is in."""
    # WebKit checks the scripts of workers, which pass through the service worker, against its policy
    policy = "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'"
    headers = _HEADERS | {"Content-Security-Policy": policy}
    return FileResponse(FILES / "sw.js", media_type="text/javascript", headers=headers)


@router.get("/page/samples/photo.json")
async def sample(service: TheService) -> Response:
    """The sample photo as labeled by the default model."""
    result = await service.in_thread(sample_result, service.default)
    return Response(result, media_type="application/json", headers={"Cache-Control": "no-cache"})


@router.get("/page/facts.json")
async def facts(service: TheService) -> Response:
    """The facts that page and program share; `local`: whether it can label in the browser."""
    shared = (await _pipeline(service)).facts | {"service": True, "local": has_runtime()}
    return JSONResponse(shared, headers={"Cache-Control": "no-cache"})


@router.get("/page/models/{name}")
async def graph(name: str, service: TheService, request: Request) -> Response:
    """A verified graph; 304 if the browser has it."""
    path = (await _pipeline(service)).graphs.get(name) if has_runtime() else None
    if path is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    headers = {"Cache-Control": "no-cache"}
    response = FileResponse(path, stat_result=path.stat(), media_type="application/octet-stream", headers=headers)
    is_same = StaticFiles().is_not_modified(response.headers, request.headers)
    return NotModifiedResponse(response.headers) if is_same else response


async def _pipeline(service: Service) -> BrowserPipeline:
    return await service.in_thread(lambda: service.in_browser)  # the first call verifies files


@lru_cache(maxsize=1)
def sample_result(labeler: Labeler) -> str:
    """The page's sample photo, labeled: JSON, as REST returns it with attention maps if the model has them."""
    options = LabelOptions(explain=labeler.classifier.manifest.explain is not None)
    photo = labeler.label(_SAMPLE.read_bytes())
    image = image_result(0, _SAMPLE.name, photo, labeler.classifier, options)
    return json.dumps({"images": [image.model_dump(mode="json")]})


def card_page(card: Path) -> str:
    """The page of a model card, from its Markdown; HTML in it is shown as text."""
    content = MarkdownIt("commonmark", {"html": False}).enable("table").render(card.read_text(encoding="utf-8"))
    content = re.sub(r"<thead>\s*<tr>(\s*<th>\s*</th>)*\s*</tr>\s*</thead>", "", content)  # tables without a header
    content = content.replace("<table>", '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>')
    content = content.replace("</table>", "</table></div>")
    return (FILES / "card.html").read_text(encoding="utf-8").replace("</main>", f"{content}</main>")


def has_runtime() -> bool:
    """Whether ONNX Runtime Web has been fetched with `make runtime`."""
    return (RUNTIME / "ort.wasm.min.mjs").is_file()
