"""No network access during import or start."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

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
IMPORT_EVERYTHING = """
import importlib, pkgutil
for name in ("mien", "benchmarks"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if module.name != "mien.__main__":
            importlib.import_module(module.name)
"""
START = """
import asyncio
from mien.app.main import create_app
from tests.support import ROOT
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
    return subprocess.run(command, cwd=home, env=clean, capture_output=True, text=True, timeout=250, check=False)


def test_importing_opens_no_connection(tmp_path: Path) -> None:
    result = _run_watched(IMPORT_EVERYTHING, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_service_starts_without_a_network(artifact: Path, tmp_path: Path) -> None:
    result = _run_watched(START, tmp_path, MIEN_MODEL=str(artifact))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_audit_hook_detects_a_suppressed_attempt(tmp_path: Path) -> None:
    swallowed = "import socket, contextlib\nwith contextlib.suppress(OSError):\n    socket.getaddrinfo('localhost', 80)"
    result = _run_watched(swallowed, tmp_path)
    assert result.returncode == 1
    assert "socket.getaddrinfo" in result.stdout
