"""Context manager that runs the service in a process of its own on a free port."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

SERVER: Final = (
    "from mien.app.service.server import run; from mien.app.settings import load_settings; run(load_settings())"
)
_NO_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Service:
    """A running service: its process, its port on 127.0.0.1, and its response to `/ready`."""

    process: "subprocess.Popen[bytes]"
    port: int
    ready: dict[str, Any]

    def cpu_s(self) -> float:
        """Processor time that it has used, seconds; Linux only, as `memory_mb`."""
        return cpu_s(self.process.pid)

    def memory_mb(self) -> float:
        """Resident memory, megabytes."""
        return round(resident_bytes(self.process.pid) / 1e6, 1)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(process: int) -> float:
    """Processor time that a process has used, seconds; Linux only."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process; Linux only."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def service(defaults: Mapping[str, str] = _NO_DEFAULTS) -> Iterator[Service]:
    """Run a service with one worker; environment variables override `defaults`.

    Raises: SystemExit, if the service is not ready within 90 s.
    """
    port = free_port()
    given = {"MIEN_PORT": str(port), "MIEN_HOST": "127.0.0.1", "MIEN_WORKERS": "1"}
    environment = {**defaults, **os.environ, **given}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", SERVER], env=environment, stdout=quiet, stderr=quiet)
    try:
        yield Service(process, port, _ready(process, port))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(40)


def _ready(process: "subprocess.Popen[bytes]", port: int) -> Any:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is not for this machine
    for _ in range(900):
        if process.poll() is not None:
            raise SystemExit("the service did not start; run `mien serve` to see why")
        try:
            with direct.open(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
                return json.load(response)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service was not ready within 90 s")
