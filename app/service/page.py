"""`/`: the page with live camera and photos, its files below `/page`, and the page as a folder of static files.

The scripts of the page are modules in `app/static/page/`; browsers get them as one file, `page.js`. The page contains
labels, colors, thresholds and rules of the program, with which it tracks people and tells scenes apart. If ONNX Runtime
Web has been fetched into `RUNTIME`, `/page/models/` has the photo graph, to label in the browser without sending a
picture.
"""

import base64
import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path, PureWindowsPath
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from mien.app.errors import StartupError
from mien.app.inference.tracker import CUT_CHANGE, MEAN, NEW_TRACK_COST, TrackingRules
from mien.app.service.api import CARD_NAME, Service, TheService
from mien.app.settings import InferenceSettings
from mien.data.contract import CROP_PX, LANDMARKS, TEMPLATE_PX
from mien.data.contract.labels import COLORS, palette
from mien.data.quality import AMBIGUOUS_BELOW, REASONS
from mien.models.manifest import ArtifactError, Precision, artifact_dir, load_artifact, scores_of

router = APIRouter(include_in_schema=False)
FILES: Final = Path(__file__).parents[1] / "static" / "page"
RUNTIME: Final = FILES / "runtime"
_PREFERRED: Final[tuple[Precision, ...]] = ("int8", "fp32")  # on WebAssembly, int8 is smaller and faster
_FOREVER: Final = "public, max-age=31536000, immutable"  # of addresses that state a version
# Only workers compile WebAssembly.
_WORKER_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'"
)


@dataclass(frozen=True, slots=True)
class BrowserPipeline:
    """What a browser gets: `facts`, and the verified photo graph, if the artifact has one."""

    facts: dict[str, Any]
    graph: Path | None


@cache
def browser_pipeline(model: Path, settings: InferenceSettings) -> BrowserPipeline:
    """Facts of the model in the folder `model`, with the settings of the service. Raises: ArtifactError."""
    manifest = load_artifact(model)
    defaults: dict[str, Sequence[float]] = {"max_faces": (settings.max_faces,)}  # of inputs of the graph
    if "detection_threshold" in settings.model_fields_set:
        defaults["score_threshold"] = (settings.detection_threshold,)
    if settings.prior == "natural":
        defaults["prior_correction"] = (0.0,) * len(manifest.labels)
    precision: Precision = next((name for name in _PREFERRED if name in manifest.photo_graphs), "fp32")
    file = manifest.photo_graphs.get(precision)
    graph = None
    if file is not None:
        graph = {
            "file": file.file,
            "version": file.sha256[:12],  # in the address, which lets a browser fetch it once
            "bytes": (model / file.file).stat().st_size,
            "precision": precision,
            "defaults": defaults,
        }
    facts = {
        "colors": COLORS | palette(manifest.labels),
        "tracking": asdict(TrackingRules())
        | {"new_track_cost": NEW_TRACK_COST, "mean_face": MEAN.ravel().tolist(), "cut_change": CUT_CHANGE},
        "limits": {name: getattr(settings, name) for name in ("min_face_px", "max_pixels")},
        "crop": {"px": CROP_PX, "template_px": TEMPLATE_PX},
        "landmarks": LANDMARKS,
        "reasons": REASONS,
        "quality": {"ambiguous_below": AMBIGUOUS_BELOW},
        "classifier": {
            "name": manifest.name,
            "labels": manifest.labels,
            "parameters": manifest.parameters,
            "prior": settings.prior,
            "confidence_threshold": manifest.confidence_threshold,
            "metrics": scores_of(model, precision),
        },
        "graph": graph,
    }
    return BrowserPipeline(facts, None if file is None else model / file.file)


@cache
def bundle() -> str:
    """The page's script with all its modules, each after those that it imports.

    Their names at the top level differ, so that they can share one scope.
    """
    modules: dict[Path, str] = {}

    def add(path: Path) -> None:
        if path in modules:
            return
        modules[path] = ""  # while those that it imports are added
        text = path.read_text(encoding="utf-8")
        for imported in re.findall(r'^import .* from "(.+)";$', text, re.MULTILINE):
            add((path.parent / imported).resolve())
        del modules[path]
        modules[path] = re.sub(r"^import .*\n|^export ", "", text, flags=re.MULTILINE)

    add((FILES / "main.js").resolve())
    return "\n".join(modules.values())


@cache
def _script() -> tuple[bytes, str]:
    """The page's script, compressed, and its version."""
    content = bundle().encode()
    return gzip.compress(content, mtime=0), hashlib.sha256(content).hexdigest()[:12]


def index_html(facts: dict[str, Any]) -> str:
    """The page with the facts that it shares with the program."""
    text = (FILES / "index.html").read_text(encoding="utf-8")
    text = text.replace('"page/page.js"', f'"page/page.js?v={_script()[1]}"')
    return text.replace(">null</script>", ">{}</script>".format(json.dumps(facts).replace("<", "\\u003c")))


@cache
def policy() -> str:
    """The content security policy, which allows the one script that stands in the page."""
    script = (FILES / "index.html").read_text(encoding="utf-8").partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # blob: for videos that the user chooses, read from the disk, and pictures that the page has drawn; nothing is sent.
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; media-src 'self' blob:; worker-src 'self'; base-uri 'none'; form-action 'none'"
    )


class Assets(StaticFiles):
    """Modules, samples and the runtime; browsers revalidate them on each use."""

    def __init__(self) -> None:
        super().__init__(directory=FILES)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        # WebKit wants it for each module that a worker imports, and workers import modules of the whole page
        response.headers["Cross-Origin-Embedder-Policy"] = "require-corp"
        if PureWindowsPath(path).parts[0] in {"local", "runtime"}:  # `path` has the separator of the system
            response.headers["Content-Security-Policy"] = _WORKER_POLICY
        return response


@router.get("/")
async def page(service: TheService) -> Response:
    """Live camera and photos."""
    headers = {
        "Content-Security-Policy": f"{policy()}; frame-ancestors 'none'",
        "Cache-Control": "no-cache",
        "Cross-Origin-Embedder-Policy": "require-corp",  # isolated, so that WebAssembly may use threads
    }
    return HTMLResponse(index_html(await _facts(service)), headers=headers)


@router.get("/page/page.js")
async def script(request: Request) -> Response:
    """The script of the page; every browser reads gzip."""
    content, version = _script()
    headers = {"Cache-Control": _cache_control(request, version), "Content-Encoding": "gzip"}
    return Response(content, media_type="text/javascript", headers=headers)


@router.get("/page/card.txt")
async def card(service: TheService) -> Response:
    """The card of the default model as text, which every browser shows."""
    path = service.labeler.classifier.folder / CARD_NAME
    return FileResponse(path, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-cache"})


@router.get("/page/facts.json")
async def facts(service: TheService) -> Response:
    """The facts that page and program share; `local`: whether it can label in the browser."""
    return JSONResponse(await _facts(service), headers={"Cache-Control": "no-cache"})


@router.get("/page/models/{name}")
async def graph(name: str, service: TheService, request: Request) -> Response:
    """The verified photo graph."""
    pipeline = await _pipeline(service)
    path = pipeline.graph
    if path is None or path.name != name or not has_runtime():
        raise HTTPException(HTTPStatus.NOT_FOUND)
    headers = {"Cache-Control": _cache_control(request, pipeline.facts["graph"]["version"])}
    return FileResponse(path, media_type="application/octet-stream", headers=headers)


def _cache_control(request: Request, version: str) -> str:
    return _FOREVER if request.query_params.get("v") == version else "no-cache"


async def _facts(service: Service) -> dict[str, Any]:
    facts = (await _pipeline(service)).facts
    return facts | {"service": True, "local": has_runtime() and facts["graph"] is not None}


async def _pipeline(service: Service) -> BrowserPipeline:
    # in a thread, because the first call verifies files
    return await service.in_thread(browser_pipeline, service.labeler.classifier.folder, service.settings)


def has_runtime() -> bool:
    """Whether ONNX Runtime Web has been fetched with `make runtime`."""
    return (RUNTIME / "ort.wasm.min.mjs").is_file()


def write_page(folder: Path, settings: InferenceSettings) -> None:
    """Write the page as static files, which label in the browser without a service.

    URLs are relative, so that the page also works below a sub-path. A static web server does not send our headers: the
    content security policy is in the page.

    Raises: StartupError, without the runtime or over own files; ArtifactError, also for a model without a photo graph.
    """
    if not has_runtime():
        raise StartupError(
            "ONNX Runtime Web is missing. Run `make runtime` in a clone, which fetches it with npm. For an installed "
            f"package, copy the files in dist/ of the npm package onnxruntime-web to {RUNTIME}"
        )
    if not (folder / "page" / "page.js").exists():  # of an earlier page
        for name in ("index.html", "page"):
            if (folder / name).exists():
                raise StartupError(f"{folder / name} would be replaced. Choose a new folder or that of an earlier page")
    model = artifact_dir(settings.model)
    pipeline = browser_pipeline(model, settings)
    if pipeline.graph is None:
        raise ArtifactError(f"artifact {model.name}: no photo graph; write it with `mien export {model} --photos DIR`")
    shutil.copytree(FILES, folder / "page", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.html"))
    (folder / "page" / "page.js").write_text(bundle(), encoding="utf-8")
    (folder / "page" / "models").mkdir(exist_ok=True)
    shutil.copyfile(pipeline.graph, folder / "page" / "models" / pipeline.graph.name)
    shutil.copyfile(model / CARD_NAME, folder / "page" / "card.txt")
    charset = '<meta charset="utf-8">'
    meta = f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy()}">'
    index = index_html(pipeline.facts | {"service": False, "local": True}).replace(charset, meta)
    (folder / "index.html").write_text(index, encoding="utf-8")
