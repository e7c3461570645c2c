"""Service in a process of its own, on a free port of this machine."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving import SERVER, cpu_s, free_port
from tests.support import ROOT, environment_of, eventually

# The heads of requests, to which more headers and an empty line are added
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@dataclass
class Server:
    """A server process that can be stopped and started again; `folder` has its log and temporary files."""

    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    workers: int = 1  # `start` waits for all of them

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start the process, and wait until it and its workers are ready."""
        before = self._started()
        environment = self.environment | {"MIEN_PORT": str(self.port)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER], env=environment, cwd=self.folder, stdout=log, stderr=log
            )
        wait_until_ready(self.url, self.process, self.log)
        # the first worker responds while others start
        eventually(lambda: self._started() - before >= self.workers, failure=self.log.read_text, timeout_s=90)

    def _started(self) -> int:
        return self.log.read_text().count("Application startup complete") if self.log.exists() else 0

    def stop(self, timeout_s: float = 40) -> int:
        """Stop the process with SIGTERM; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)

    def post(self, image: bytes, **headers: str) -> httpx.Response:
        """The response to one image."""
        headers = {"content-type": "image/jpeg"} | headers
        return httpx.post(f"{self.url}/v1/expressions", content=image, headers=headers, timeout=60)

    def send(self, *parts: bytes) -> bytes:
        """Send raw bytes until the server closes. Returns what it wrote."""
        received = b""
        with socket.create_connection(self.address, timeout=20) as client:
            with suppress(OSError):
                for part in parts:
                    client.sendall(part)
            with suppress(OSError):
                while part := client.recv(65536):
                    received += part
        return received

    def memory_mb(self) -> float:
        """Resident memory of the process, megabytes."""
        return self._status_mb("VmRSS")

    def peak_mb(self) -> float:
        """Largest resident memory since the last `reset_peak`, megabytes."""
        return self._status_mb("VmHWM")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    def _status_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) / 1000

    def cpu_s(self) -> float:
        """CPU time of the process in seconds, which does not depend on other programs."""
        return cpu_s(self.process.pid)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until `/ready` responds; fails with the log of a process that ends or takes too long."""

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/ready", timeout=5).status_code == 200
        return False

    eventually(ready, failure=log.read_text, timeout_s=90)


@contextmanager
def serving(folder: Path, artifact: Path, **settings: object) -> Iterator[Server]:
    """A running service on the CPU with these settings, and no others from the environment."""
    environment = environment_of(**{"device": "cpu", "model": artifact, "workers": 1, **settings})
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "HOME": str(folder)}
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    server = Server(folder, environment, workers=int(environment["MIEN_WORKERS"]))
    try:
        server.start()
        yield server
    finally:
        with suppress(subprocess.TimeoutExpired):
            server.stop(20)
        server.process.kill()
        server.process.wait(20)
