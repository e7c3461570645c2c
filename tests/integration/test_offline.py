"""Nothing reaches for the network unasked: not an import, not a start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tiny_artefact

ROOT = Path(__file__).resolve().parents[2]
# An audit hook sees every attempt, also one whose failure the library swallows; threads of an import are waited for.
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
IMPORT_EVERYTHING = """
import importlib, pkgutil
for name in {packages!r}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
START = """
import asyncio
from app.main import create_app
app = create_app()
async def start_and_stop():
    async with app.router.lifespan_context(app):
        pass
asyncio.run(start_and_stop())
"""


def _run_watched(body: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MIEN_", "XDG_", "HF_"))}
    clean.pop("NO_ALBUMENTATIONS_UPDATE", None)
    clean |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"} | environment
    command = [sys.executable, "-c", WATCH.format(body=body)]
    return subprocess.run(command, cwd=home, env=clean, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("packages", [("app", "data", "models"), ("training", "benchmarks")], ids=" and ".join)
def test_importing_reaches_for_no_network(packages: tuple[str, ...], tmp_path: Path) -> None:
    answer = _run_watched(IMPORT_EVERYTHING.format(packages=packages), tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_service_starts_without_a_network(tmp_path: Path) -> None:
    artefact = tiny_artefact(tmp_path / "tiny.test")
    answer = _run_watched(START, tmp_path, MIEN_MODEL=str(artefact))
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_watch_notices_a_swallowed_attempt(tmp_path: Path) -> None:
    swallowed = "import socket, contextlib\nwith contextlib.suppress(OSError):\n    socket.getaddrinfo('localhost', 80)"
    answer = _run_watched(swallowed, tmp_path)
    assert answer.returncode == 1
    assert "socket.getaddrinfo" in answer.stdout
