"""The page as a folder of static files: it labels in the browser, without a service.

URLs are relative, so that the page also works below a sub-path. A static web server does not send our headers: the
content security policy is in the page.
"""

import json
import shutil
from pathlib import Path
from typing import Final

from mien.app.errors import StartupError
from mien.app.inference.in_browser import browser_pipeline
from mien.app.service.routes.models import CARD_NAME
from mien.app.service.routes.page import FILES, POLICY, RUNTIME, has_runtime
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
    if not (folder / "page" / "facts.json").exists():  # of an earlier page
        for name in ("index.html", "page"):
            if (folder / name).exists():
                raise StartupError(f"{folder / name} would be replaced. Choose a new folder or that of an earlier page")
    model = artifact_dir(settings.model)
    pipeline = browser_pipeline(model, settings)
    shutil.copytree(FILES, folder / "page", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.html"))
    (folder / "page" / "models").mkdir(exist_ok=True)
    for name, path in pipeline.graphs.items():
        shutil.copyfile(path, folder / "page" / "models" / name)
    shutil.copyfile(model / CARD_NAME, folder / "page" / "card.txt")
    index = (FILES / "index.html").read_text(encoding="utf-8")
    policy = f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    (folder / "index.html").write_text(index.replace(_CHARSET, policy), encoding="utf-8")
    facts = pipeline.facts | {"service": False, "local": True}
    (folder / "page" / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
