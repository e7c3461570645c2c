"""Imports of a serving process: no training library, no network access."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_photo

FORBIDDEN = ("torch", "torchvision", "timm", "albumentations", "onnx", "onnxscript", "sklearn", "yaml", "mien.training")

SERVE_ONE_PHOTO = """
import importlib, json, pkgutil, socket, sys
from pathlib import Path

def no_network(*arguments, **options):
    raise AssertionError(f"a connection was opened: {arguments}")

socket.socket.connect = no_network
socket.getaddrinfo = no_network

from mien import app
for module in pkgutil.walk_packages(app.__path__, "mien.app."):
    importlib.import_module(module.name)
from mien.app.inference.pipeline import build_pipeline
from mien.app.settings import load_settings

pipeline = build_pipeline(load_settings(model=Path(sys.argv[1]), detector="builtin", device="cpu"))
analysis = pipeline.analyze(Path(sys.argv[2]).read_bytes())
print(json.dumps({"faces": len(analysis.faces), "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def serving(artifact: Path) -> dict[str, Any]:
    """Output of a process that imported all of `app` and labeled one photo."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERVE_ONE_PHOTO, str(artifact), str(sample_photo())],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_serving_process_labels_a_photo_without_the_network(serving: dict[str, Any]) -> None:
    assert serving["faces"] == 1


@pytest.mark.parametrize("library", FORBIDDEN)
def test_a_serving_process_never_imports_a_training_library(serving: dict[str, Any], library: str) -> None:
    assert library not in serving["modules"]
