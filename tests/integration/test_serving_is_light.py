"""What a serving process carries: no training library, and no word to the network."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_photo, tiny_artefact

FORBIDDEN = ("torch", "torchvision", "timm", "albumentations", "onnx", "onnxscript", "sklearn", "yaml", "training")

SERVE_ONE_PHOTO = """
import importlib, json, pkgutil, socket, sys
from pathlib import Path

def no_network(*arguments, **options):
    raise AssertionError(f"a connection was opened: {arguments}")

socket.socket.connect = no_network
socket.getaddrinfo = no_network

import app
for module in pkgutil.walk_packages(app.__path__, "app."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from app.pipeline import build_pipeline
from app.settings import load_settings

pipeline = build_pipeline(load_settings(model=Path(sys.argv[1]), detector="haar", device="cpu"))
analysis = pipeline.analyse(Path(sys.argv[2]).read_bytes())
print(json.dumps({"faces": len(analysis.faces), "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process says that imported all of `app` and labelled one photo."""
    model = tiny_artefact(tmp_path_factory.mktemp("artefacts") / "tiny.test")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERVE_ONE_PHOTO, str(model), str(sample_photo())],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_serving_process_labels_a_photo_without_the_network(serving: dict[str, Any]) -> None:
    assert serving["faces"] == 1


@pytest.mark.parametrize("library", FORBIDDEN)
def test_a_serving_process_never_imports_a_training_library(serving: dict[str, Any], library: str) -> None:
    assert library not in serving["modules"]
