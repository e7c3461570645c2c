"""Benchmark of the number of cores: `mien label` and the service, each pinned to 1, 2, 4, ... cores.

    python -m benchmarks.scaling --photos FOLDER --cores 1,2,4,8,16 --device cpu,cuda --json out/scaling.json

`mien label` labels `--count` photos per core (links to those of FOLDER) into `labels.csv`, with one process per core;
its rate includes the start of the processes. The service has one worker per two cores, at least one, and gets requests
of one photo from four clients per core. Clients run on the other cores if there are any, else on the same ones.

`images_per_s` and `requests_per_s` are the best of `--rounds`, because other programs can only slow them down.
`efficiency` is the rate per core, divided by the rate per core of the fewest cores on the same device. `memory_mb` is
the peak of all processes together, `process_mb` that of the largest one: the pages of a process alone, and its part of
those that it shares (PSS). Model and detector are set by `MIEN_*` variables. Linux only.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.labeling import make_photos, run_mien
from benchmarks.load import images, send
from benchmarks.results import benchmark_parser, publish
from benchmarks.serving import service

CLIENTS_PER_CORE: Final = 4
_EVERY_S: Final = 0.5


class Memory(threading.Thread):
    """Measures the memory of all processes below this one until the block ends."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.total_mb = self.process_mb = 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        """Keep the peaks."""
        while not self._ended.wait(_EVERY_S):
            sizes = [pss_mb(process) for process in below(os.getpid())]
            self.total_mb, self.process_mb = max(self.total_mb, sum(sizes)), max(self.process_mb, *sizes, 0.0)

    def __enter__(self) -> "Memory":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self.join()


def below(process: int) -> Iterator[int]:
    """Processes that a process has started, and theirs."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
                yield child
                yield from below(child)


def pss_mb(process: int) -> float:
    """Proportional set size of a process, megabytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:")), 0.0)
    return 0.0


@contextlib.contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Let processes that start in the block run on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def label(photos: Path, cores: Sequence[int], *, count: int, rounds: int) -> dict[str, Any]:
    """Label `count` photos per core on these cores. Raises: CalledProcessError."""
    best: dict[str, Any] = {"images_per_s": 0.0}
    with tempfile.TemporaryDirectory(prefix="mien-scaling-") as folder, pinned(cores):
        make_photos(Path(folder) / "photos", photos, count * len(cores))
        for number in range(rounds):
            options = ("--out", f"{folder}/{number}", "--write", "csv", "--workers", str(len(cores)))
            with Memory() as memory:
                run = run_mien(Path(folder) / "photos", *options)
            rate = run["labeled_now"] / run["seconds"]
            if rate > best["images_per_s"]:
                best = {"images_per_s": rate, "memory_mb": memory.total_mb, "process_mb": memory.process_mb}
                best["processes"] = run["workers"]
    return best


def serve(photos: Path, cores: Sequence[int], others: Sequence[int], *, requests: int, rounds: int) -> dict[str, Any]:
    """Send `requests` per core to a service on these cores, from clients on the others."""
    clients, count = CLIENTS_PER_CORE * len(cores), requests * len(cores)
    rates = []
    with contextlib.ExitStack() as running:
        memory = running.enter_context(Memory())
        with pinned(cores):
            workers = str(max(1, len(cores) // 2))
            port = running.enter_context(service({"MIEN_MAX_QUEUE": "10000"}, workers=workers)).port
        for _ in range(rounds + 1):  # the first one warms up
            with pinned(others or cores):
                rates.append(send(port, images(photos), count, concurrency=clients)["requests_per_s"])
    return {"requests_per_s": max(rates[1:]), "workers": int(workers), "memory_mb": memory.total_mb}


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos, without subfolders")
    parser.add_argument("--cores", default="1,2,4,8,16", help="numbers of cores (1,2,4,8,16)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or both with a comma (cpu)")
    parser.add_argument("--count", type=int, default=1700, help="photos per core (1700)")
    parser.add_argument("--requests", type=int, default=300, help="requests per core (300)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    options = parser.parse_args()
    if not hasattr(os, "sched_getaffinity"):
        raise SystemExit("this benchmark pins processes to cores, for which it needs Linux")
    available, numbers = sorted(os.sched_getaffinity(0)), sorted({int(number) for number in options.cores.split(",")})
    if not 1 <= numbers[0] <= numbers[-1] <= len(available):
        raise SystemExit(f"--cores {options.cores}: expected numbers from 1 to {len(available)}, those of this machine")
    results: list[dict[str, Any]] = []
    for device in options.device.split(","):
        os.environ["MIEN_DEVICE"] = device
        first: dict[str, Any] = {}
        for number in numbers:
            cores, others = available[:number], available[number:]
            result: dict[str, Any] = {"device": device, "cores": number}
            result["label"] = label(options.photos, cores, count=options.count, rounds=options.rounds)
            result["service"] = serve(options.photos, cores, others, requests=options.requests, rounds=options.rounds)
            first = first or result
            for name, rate in (("label", "images_per_s"), ("service", "requests_per_s")):
                per_core = result[name][rate] / number
                result[name]["efficiency"] = per_core / (first[name][rate] / first["cores"])
                result[name] = {key: round(value, 3) for key, value in result[name].items()}
            results.append(result)
            print(result, file=sys.stderr)
    publish({"results": results, "photos_per_core": options.count}, options.json)


if __name__ == "__main__":
    main()
