"""`/`: the page with live camera and photos, and its files below `/page`.

`/page/facts.json` has the labels, thresholds and rules of the program (app/inference/in_browser.py). If ONNX Runtime
Web has been fetched into `RUNTIME`, `/page/models/` has the graphs to label in the browser without sending a picture.
"""

from http import HTTPStatus
from pathlib import Path, PureWindowsPath
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from mien.app.inference.in_browser import BrowserPipeline
from mien.app.service.routes import TheService
from mien.app.service.routes.models import CARD_NAME
from mien.app.service.state import Service

router = APIRouter(include_in_schema=False)
FILES: Final = Path(__file__).parents[2] / "static" / "page"
RUNTIME: Final = FILES / "runtime"
# blob: for videos that the user chooses, read from the disk, and pictures that the page has drawn; nothing is sent.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "media-src 'self' blob:; worker-src 'self'; base-uri 'none'; form-action 'none'"
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


@router.get("/page/card.txt")
async def card(service: TheService) -> Response:
    """The card of the default model as text, which every browser shows."""
    path = service.labeler.classifier.folder / CARD_NAME
    return FileResponse(path, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-cache"})


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


def has_runtime() -> bool:
    """Whether ONNX Runtime Web has been fetched with `make runtime`."""
    return (RUNTIME / "ort.wasm.min.mjs").is_file()
