"""No network access during import, start and use; no training library in a serving process."""

import os
import sys
from pathlib import Path

from tests.support import ROOT, output_of, sample_photo
from tests.support.albums import rows_of, write_photos, write_video

# An audit hook sees every attempt, even if the library suppresses its failure; threads of an import are joined.
SCRIPT = """
import contextlib, importlib, pkgutil, socket, sys, threading, warnings
from pathlib import Path

reached = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        reached.append((event, repr(arguments)))
sys.addaudithook(watch)

def import_all(package):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name != "mien.__main__":
            importlib.import_module(module.name)

import_all("mien.app")
from fastapi.testclient import TestClient
from mien.app.cli import main
from mien.app.labeling.review.server import create_review_app
from mien.app.service.app import create_app

with TestClient(create_app(), base_url="http://localhost") as client:
    photo = Path(sys.argv[1]).read_bytes()
    response = client.post("/v1/expressions", content=photo, headers={"content-type": "image/jpeg"})
    assert len(response.json()["images"][0]["faces"]) == 1
for command in ("label photos --out out", "webcam --source film.avi --json"):
    sys.argv = ["mien", *command.split()]
    with contextlib.suppress(SystemExit):
        main()
with TestClient(create_review_app(Path("out")), base_url="http://127.0.0.1") as client:
    assert client.get("/").status_code == 200
training = "torch torchvision timm albumentations onnx onnxscript sklearn yaml mien.training"
assert not {*training.split()} & sys.modules.keys(), "of a serving process"

warnings.simplefilter("default")
import_all("mien")
import_all("benchmarks")
for thread in threading.enumerate():
    if thread is not threading.current_thread() and not thread.daemon:
        thread.join(20)
assert not reached, reached
with contextlib.suppress(OSError):
    socket.getaddrinfo("localhost", 80)
assert reached, "the hook sees an attempt"
"""


def test_serving_labeling_review_and_video_open_no_connection_and_load_no_training_library(
    artifact: Path, tmp_path: Path
) -> None:
    write_photos(tmp_path / "photos", count=2)
    write_video(tmp_path / "film.avi", frames=4)
    others = ("MIEN_", "XDG_", "HF_", "NO_ALBUMENTATIONS_UPDATE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    environment |= {"MIEN_MODEL": str(artifact), "MIEN_DETECTOR": "builtin", "MIEN_DEVICE": "cpu"}
    output_of(sys.executable, "-c", SCRIPT, sample_photo(), cwd=tmp_path, env=environment, timeout=250)
    assert len(rows_of(tmp_path / "out")) == 2
