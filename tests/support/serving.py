"""Service in a process of its own, on a free port of this machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import BaseServer
from threading import Thread
from typing import Any, Literal

import httpx

from benchmarks.serving import SERVER, free_port
from tests.support import environment_of, eventually


@dataclass
class Server:
    """A server process that can be stopped and started again; `folder` has its log and temporary files."""

    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def starts(self) -> int:
        """How many processes of workers have started so far."""
        return self.log.read_text().count("Application startup complete")

    def start(self) -> None:
        """Start the process, and wait until its workers are ready; fails with the log if it ends or takes too long."""
        command, environment = [sys.executable, "-c", SERVER], self.environment | {"MIEN_PORT": str(self.port)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        goal = self.starts() + int(environment["MIEN_WORKERS"])
        eventually(
            lambda: self.starts() >= goal or self.process.poll() is not None, failure=self.log.read_text, timeout_s=90
        )
        assert self.process.poll() is None, self.log.read_text()

    def stop(self, timeout_s: float = 40) -> int:
        """Stop the process with SIGTERM; returns its exit status."""
        self.process.terminate()
        return self.process.wait(timeout_s)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)

    def post(self, image: bytes, **headers: str) -> httpx.Response:
        """The response to one image."""
        headers = {"content-type": "image/jpeg"} | headers
        return httpx.post(f"{self.url}/v1/expressions", content=image, headers=headers, timeout=60)

    def memory_mb(self, kind: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
        """Resident memory of the process, now or at its peak since the last `reset_peak`, megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind)) / 1000

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")


@contextmanager
def serving(folder: Path, artifact: Path, **settings: object) -> Iterator[Server]:
    """A running service on the CPU with these settings, and no others from the environment."""
    environment = environment_of(**{"device": "cpu", "model": artifact, "workers": 1, **settings})
    environment |= {"TMPDIR": str(folder / "tmp"), "HOME": str(folder)}
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    server = Server(folder, environment)
    try:
        server.start()
        yield server
    finally:
        with suppress(subprocess.TimeoutExpired):
            server.stop(20)
        server.process.kill()
        server.process.wait(20)


@contextmanager
def serving_in_thread(server: BaseServer) -> Iterator[Any]:
    """A server that serves until the end of the block."""
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
