"""Benchmark of the service: overhead over a bare loop of its stages, and latency below full load.

    python -m benchmarks.serving --json out/serving.json
    python -m benchmarks.serving --photos ../photos --rounds 5 --json out/serving.json

Two loads take turns on the same cores: a bare loop of decode, detect, align and classify with one thread per core, and
the service with 16 clients (`--clients`). The service then gets 70 % of the median rate with random arrivals (Poisson).
The load generator runs on the same cores, so its cost counts against the service. `efficiency` is requests/s of the
service divided by photos/s of the bare loop just before, the median of the rounds. Model, detector and device are set
by `MIEN_*` variables, also the number of processes, one by default. Run it on an idle Linux machine.
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import SAMPLES, bare_s, benchmark_parser, publish
from benchmarks.load import images, send
from mien.app.cpu_count import cores
from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings

SERVER: Final = (
    "from mien.app.service.start import run; from mien.app.settings import load_settings; run(load_settings())"
)
SHARE: Final = 0.7
# one process, which refuses nothing
_DEFAULTS: Final = {"MIEN_WORKERS": "1", "MIEN_MAX_QUEUE": "10000", "MIEN_MAX_BODY_BYTES": "2700000000"}


@dataclass(frozen=True, slots=True)
class Service:
    """A running service: the id of its process, its port on 127.0.0.1, and its response to `/ready`."""

    pid: int
    port: int
    ready: dict[str, Any]

    def memory_mb(self) -> float:
        """Resident memory, megabytes; Linux only."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(process: int) -> float:
    """Processor time that a process has used, seconds; Linux only."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service() -> Iterator[Service]:
    """Run a service; environment variables override its defaults.

    Raises: SystemExit, if the service is not ready within 90 s.
    """
    port = free_port()
    environment = {**_DEFAULTS, **os.environ, "MIEN_PORT": str(port), "MIEN_HOST": "127.0.0.1"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", SERVER], env=environment, stdout=quiet, stderr=quiet)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is not for this machine
    ended = time.monotonic() + 90
    try:
        while True:
            try:
                with direct.open(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
                    ready = json.load(response)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > ended:
                    raise SystemExit("the service did not start within 90 s; run `mien serve` to see why") from None
                time.sleep(0.1)
        yield Service(process.pid, port, ready)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(40)


def measure(photos: Path, *, rounds: int, passes: int, steady: int, clients: int) -> dict[str, Any]:
    """Alternate bare loop and service `rounds` times, then send `steady` requests at 70 % of the median rate."""
    paths = images(photos)
    count = len(paths) * passes
    # one loop per core, and one loop with multithreaded inference
    loops = [(Labeler.open(load_settings(threads=threads)), workers) for threads, workers in ((1, cores()), (0, 1))]
    bare, full, cpu_ms = [], [], []
    with service() as running:
        send(running.port, paths, count, concurrency=clients)
        for pipeline, workers in loops:
            bare_s(pipeline, paths, workers)
        for _ in range(rounds):
            bare.append(count / min(bare_s(pipeline, paths * passes, workers) for pipeline, workers in loops))
            start_s = cpu_s(running.pid)
            full.append(send(running.port, paths, count, concurrency=clients)["requests_per_s"])
            cpu_ms.append((cpu_s(running.pid) - start_s) * 1000 / count)
        rate = SHARE * statistics.median(full)
        steady_load = send(running.port, paths, steady, rate=rate)
    return {
        "efficiency": round(statistics.median(map(truediv, full, bare)), 3),
        "cpu_ms_per_request": round(statistics.median(cpu_ms), 2),
        "requests_per_s": statistics.median(full),
        "bare_photos_per_s": round(statistics.median(bare), 2),
        "p50_ms": steady_load["p50_ms"],
        "p99_ms": steady_load["p99_ms"],
        "steady_rate_per_s": round(rate, 2),
        "steady_requests": steady,
        "clients": clients,
        "photos": len(paths),
        **{name: running.ready[name] for name in ("provider", "precision", "detector", "model")},
    }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIEN_PHOTOS_DIR", SAMPLES)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5, help="passes over the photos per round")
    parser.add_argument("--clients", type=int, default=16, help="concurrent requests at full load")
    parser.add_argument("--steady", type=int, default=1000, help="requests at 70 percent of the full rate")
    options = vars(parser.parse_args())
    path = options.pop("json")
    publish(measure(**options), path)


if __name__ == "__main__":
    main()
