"""No network access during import, start and use; no training library in a serving process."""

import os
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, output_of, sample_photo
from tests.support.albums import rows_of, write_photos, write_video

# An audit hook sees every attempt, even if the library suppresses its failure; threads of an import are joined.
WATCH = """
import sys, threading
reached = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        reached.append((event, repr(arguments)))
sys.addaudithook(watch)
{body}
for thread in threading.enumerate():
    if thread is not threading.current_thread() and not thread.daemon:
        thread.join(20)
print("reached:", reached)
sys.exit(bool(reached))
"""
IMPORT_ALL_AND_RUN = """
import contextlib, importlib, pkgutil
for name in ("mien", "benchmarks"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if module.name != "mien.__main__":
            importlib.import_module(module.name)
from fastapi.testclient import TestClient
from pathlib import Path
from mien.app.cli import main
from mien.app.labeling.review.server import create_review_app
for command in {commands!r}:
    sys.argv = ["mien", *command]
    with contextlib.suppress(SystemExit):
        main()
with TestClient(create_review_app(Path("out")), base_url="http://127.0.0.1") as client:
    assert client.get("/").status_code == 200
"""
SERVE_ONE_PHOTO = """
import asyncio, importlib, pkgutil, httpx
from mien import app
from mien.app.service.app import create_app
for module in pkgutil.walk_packages(app.__path__, "mien.app."):
    importlib.import_module(module.name)
service = create_app()
async def serve():
    transport = httpx.ASGITransport(service)
    async with service.router.lifespan_context(service), httpx.AsyncClient(transport=transport) as client:
        headers = {{"content-type": "image/jpeg"}}
        content = open({photo!r}, "rb").read()
        response = await client.post("http://localhost/v1/expressions", content=content, headers=headers)
    (image,) = response.json()["images"]
    assert len(image["faces"]) == 1
asyncio.run(serve())
loaded = {forbidden} & sys.modules.keys()
assert not loaded, loaded
"""
FORBIDDEN = {"torch", "torchvision", "timm", "albumentations", "onnx", "onnxscript", "sklearn", "yaml", "mien.training"}


def _run_watched(body: str, home: Path, **environment: str) -> None:
    """Run Python code in a folder; fails if it fails or reaches for the network."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MIEN_", "XDG_", "HF_"))}
    clean.pop("NO_ALBUMENTATIONS_UPDATE", None)
    clean |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"} | environment
    output_of(sys.executable, "-c", WATCH.format(body=body), cwd=home, env=clean, timeout=250)


def test_a_service_labels_a_photo_without_the_network_and_training_libraries(artifact: Path, tmp_path: Path) -> None:
    settings = {"MIEN_MODEL": str(artifact), "MIEN_DETECTOR": "builtin", "MIEN_DEVICE": "cpu"}
    body = SERVE_ONE_PHOTO.format(forbidden=FORBIDDEN, photo=str(sample_photo()))
    _run_watched(body, tmp_path, PYTHONWARNINGS="error", **settings)


def test_import_labeling_review_and_video_open_no_connection(artifact: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=2)
    write_video(tmp_path / "film.avi", frames=4)
    commands = [["label", "photos", "--out", "out"], ["webcam", "--source", "film.avi", "--json"]]
    settings = {"MIEN_MODEL": str(artifact), "MIEN_DETECTOR": "builtin", "MIEN_DEVICE": "cpu"}
    _run_watched(IMPORT_ALL_AND_RUN.format(commands=commands), tmp_path, **settings)
    assert len(rows_of(tmp_path / "out")) == 2
    suppressed = (
        "import socket, contextlib\nwith contextlib.suppress(OSError):\n    socket.getaddrinfo('localhost', 80)"
    )
    with pytest.raises(AssertionError, match=r"socket\.getaddrinfo"):
        _run_watched(suppressed, tmp_path)
