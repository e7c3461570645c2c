"""The page as a folder of static files: it labels in the browser, without a service.

URLs are relative, so that the page also works below a sub-path. A static web server does not send our headers: the
content security policy is in the page, and the service worker adds those for several threads of WebAssembly. The
folder `page` is also an npm package for other pages, of which `example.html` is one.
"""

import json
import shutil
from pathlib import Path
from typing import Final

from mien.app import VERSION
from mien.app.errors import StartupError
from mien.app.inference.in_browser import browser_pipeline
from mien.app.inference.labeler import Labeler
from mien.app.service.routes.models import CARD_NAME
from mien.app.service.routes.page import FILES, POLICY, RUNTIME, card_page, has_runtime, sample_result
from mien.app.settings import Settings
from mien.models.manifest import artifact_dir

_CHARSET: Final = '<meta charset="utf-8">'


def write_page(folder: Path, settings: Settings) -> None:
    """Write page, runtime and models. Raises: StartupError, without the runtime or over own files; ArtifactError."""
    if not has_runtime():
        raise StartupError(
            "ONNX Runtime Web is missing. Run `make runtime` in a clone, which fetches it with npm. For an installed "
            f"package, copy the files in dist/ of the npm package onnxruntime-web to {RUNTIME}"
        )
    if not (folder / "page" / "app.webmanifest").exists():  # of an earlier page
        for name in ("index.html", "card.html", "example.html", "sw.js", "page"):
            if (folder / name).exists():
                raise StartupError(f"{folder / name} would be replaced. Choose a new folder or that of an earlier page")
    model = artifact_dir(settings.model)
    pipeline = browser_pipeline(model, settings)
    shutil.copytree(FILES, folder / "page", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.html"))
    (folder / "page" / "models").mkdir(exist_ok=True)
    for name, path in pipeline.graphs.items():
        shutil.copyfile(path, folder / "page" / "models" / name)
    index = (FILES / "index.html").read_text(encoding="utf-8").replace('href="card"', 'href="card.html"')
    policy = f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    for name, text in (("index.html", index), ("card.html", card_page(model / CARD_NAME))):
        (folder / name).write_text(text.replace(_CHARSET, policy), encoding="utf-8")
    (folder / "page" / "sw.js").replace(folder / "sw.js")
    shutil.copyfile(FILES / "example.html", folder / "example.html")
    package = json.loads((FILES / "package.json").read_text(encoding="utf-8")) | {"version": VERSION}
    (folder / "page" / "package.json").write_text(json.dumps(package, indent=2) + "\n", encoding="utf-8")
    sample = sample_result(Labeler.open(settings))
    (folder / "page" / "samples" / "photo.json").write_text(sample, encoding="utf-8")
    facts = pipeline.facts | {"service": False, "local": True}
    (folder / "page" / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
