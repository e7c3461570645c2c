"""Benchmark of the number of cores: `mien label` and the service, each pinned to 1, 2, 4, ... cores.

    python -m benchmarks.scaling --photos FOLDER --cores 1,2,4,8,16 --json out/scaling.json

`mien label` labels `--count` photos per core (links to those of FOLDER) into `labels.csv`, with one process per core;
its rate includes the start of the processes. The service has one worker per two cores, at least one, and gets requests
of one photo from four clients per core. Clients run on the other cores if there are any, else on the same ones.

`images_per_s` and `requests_per_s` are the best of `--rounds`, because other programs can only slow them down.
`efficiency` is the rate per core, divided by the rate per core of the fewest cores. Model, detector and device are set
by `MIEN_*` variables. Linux only.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import benchmark_parser, publish
from benchmarks.labeling import make_photos, run_mien
from benchmarks.load import images, send
from benchmarks.serving import service

CLIENTS_PER_CORE: Final = 4


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
    rates = []
    with tempfile.TemporaryDirectory(prefix="mien-scaling-") as folder, pinned(cores):
        make_photos(Path(folder) / "photos", photos, count * len(cores))
        for number in range(rounds):
            options = ("--out", f"{folder}/{number}", "--write", "csv", "--workers", str(len(cores)))
            run = run_mien(Path(folder) / "photos", *options)
            rates.append(run["labeled_now"] / run["seconds"])
    return {"images_per_s": max(rates), "processes": run["workers"]}


def serve(photos: Path, cores: Sequence[int], others: Sequence[int], *, requests: int, rounds: int) -> dict[str, Any]:
    """Send `requests` per core to a service on these cores, from clients on the others."""
    clients, count = CLIENTS_PER_CORE * len(cores), requests * len(cores)
    rates, workers = [], str(max(1, len(cores) // 2))
    with contextlib.ExitStack() as running:
        with pinned(cores):
            port = running.enter_context(service({"MIEN_MAX_QUEUE": "10000"}, workers=workers)).port
        for _ in range(rounds + 1):  # the first one warms up
            with pinned(others or cores):
                rates.append(send(port, images(photos), count, concurrency=clients)["requests_per_s"])
    return {"requests_per_s": max(rates[1:]), "workers": int(workers)}


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos, without subfolders")
    parser.add_argument("--cores", default="1,2,4,8,16", help="numbers of cores (1,2,4,8,16)")
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
    for number in numbers:
        cores, others = available[:number], available[number:]
        result: dict[str, Any] = {"cores": number}
        result["label"] = label(options.photos, cores, count=options.count, rounds=options.rounds)
        result["service"] = serve(options.photos, cores, others, requests=options.requests, rounds=options.rounds)
        results.append(result)
        for name, rate in (("label", "images_per_s"), ("service", "requests_per_s")):
            first = results[0][name][rate] / numbers[0]
            result[name]["efficiency"] = result[name][rate] / number / first
            result[name] = {key: round(value, 3) for key, value in result[name].items()}
        print(result, file=sys.stderr)
    publish({"results": results, "photos_per_core": options.count}, options.json)


if __name__ == "__main__":
    main()
