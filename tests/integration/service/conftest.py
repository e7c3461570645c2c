"""Server process on loopback with a tiny model and OpenCV's bundled detector."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

_ROOT = Path(__file__).resolve().parents[3]
Serve = Callable[..., "Server"]


@dataclass
class Server:
    """A running server process, its address, and the file with its output."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def stop(self, timeout_s: float = 40) -> int:
        """Stop the server with SIGTERM; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def memory_mb(self) -> float:
        """Resident memory of the process, megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1000

    def peak_mb(self) -> float:
        """Largest resident memory since the last `reset_peak`, megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1000

    def cpu_s(self) -> float:
        """CPU time of the process in seconds, which does not depend on other programs."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path, artifact: Path, *, first_on_path: Path = _ROOT, **settings: object) -> Iterator[Server]:
    port = free_port()
    chosen = {"device": "cpu", "model": artifact, "detector": "builtin", "port": port, **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
    environment |= {f"MIEN_{name.upper()}": str(value) for name, value in chosen.items()}
    environment |= {"PYTHONPATH": f"{first_on_path}:{_ROOT}", "TMPDIR": str(folder / "tmp"), "HOME": str(folder)}
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    program = "from app.service.server import run; from app.settings import load_settings; run(load_settings())"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, cwd=folder, stdout=output, stderr=output
        )
    server = Server(process, port, log, folder)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _wait_until_ready(server: Server, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{server.log.read_text()}")


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Serve]:
    """Start a server with the given settings; stops it after the test."""
    with ExitStack() as servers:
        yield lambda **settings: servers.enter_context(running(tmp_path_factory.mktemp("server"), artifact, **settings))


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Server]:
    """A server with short timeouts and a long queue, shared by tests that do not change its state."""
    patience = {"header_timeout_s": 1, "body_timeout_s": 1}
    room = {"max_queue": 500, "max_per_client": 0, "max_wait_s": 60}
    with running(tmp_path_factory.mktemp("common"), artifact, **patience, **room) as server:
        yield server
