"""What does the service cost on top of its own stages, and how steady is it below full load?

    python -m benchmarks.serving --json out/serving.json
    python -m benchmarks.serving --photos ../photos --rounds 5 --json out/serving.json

Three programs take turns on the same cores: a bare loop of decode, detect, align, classify in one process, as many
threads as there are cores; the service under 16 clients; the service at 70 % of what it has just borne, with requests
at random moments (Poisson). Load comes from a process of its own over loopback, so the service pays for that one, too.
`efficiency` is requests per second of the service over photos per second of the bare loop. `ideal` says how steady a
queue could be at the same load with the times that the bare loop took for each photo (benchmarks/ideal.py), and
`p99_over_ideal` how far the service is from it. Model, detector and device are those that the environment says
(`MIEN_*`). Run it on a quiet machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.background import service
from benchmarks.figures import publish
from benchmarks.ideal import references
from benchmarks.load import TYPES

if TYPE_CHECKING:
    from app.pipeline import Pipeline

CONCURRENCY: Final = 16
SHARE: Final = 0.7
_SAMPLES: Final = Path(__file__).resolve().parent.parent / "samples" / "photos"
_PATIENT: Final = {"MIEN_MAX_WAIT_S": "60"}  # the question is how fast, not who is refused


def bare(photos: Path, passes: int) -> dict[str, Any]:
    """A loop over the pipeline in this process, all cores busy.

    Returns: `photos_per_s` of the better of two ways to use the cores; `photo_s`, the mean seconds of every photo in
        one thread of its own, in the order of their names.
    """
    from app.cores import cores
    from app.pipeline import build_pipeline
    from app.settings import load_settings

    payloads = [path.read_bytes() for path in _pictures(photos)]
    side_by_side = build_pipeline(load_settings(threads=1))
    rate, photo_s = _loop(side_by_side, payloads, passes, loops=cores())
    joined, _ = _loop(build_pipeline(load_settings(threads=0)), payloads, passes, loops=1)
    return {"photos_per_s": max(rate, joined), "photo_s": photo_s, "cores": cores()}


def _loop(pipeline: "Pipeline", payloads: list[bytes], passes: int, *, loops: int) -> tuple[float, list[float]]:
    def timed(payload: bytes) -> float:
        start = time.perf_counter()
        pipeline.analyse(payload)
        return time.perf_counter() - start

    with ThreadPoolExecutor(loops) as pool:
        list(pool.map(timed, payloads))
        start = time.perf_counter()
        taken = list(pool.map(timed, payloads * passes))
        rate = len(taken) / (time.perf_counter() - start)
    return rate, [statistics.fmean(taken[index :: len(payloads)]) for index in range(len(payloads))]


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in TYPES)


def _bare_in_process(photos: Path, passes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.serving", "--bare", "--photos", str(photos), "--passes", str(passes)]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def _load(port: int, photos: Path, count: int, **how: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.load", "127.0.0.1", str(port), str(photos), "--count", str(count)]
    for name, value in how.items():
        command += [f"--{name}", str(value)]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if set(answer["statuses"]) != {"200"}:
        raise SystemExit(f"the load was not answered with 200 alone: {answer['statuses']}")
    return answer


def measure(photos: Path, *, rounds: int, passes: int, steady: int) -> dict[str, Any]:
    """Alternate bare loop and service `rounds` times, then hold 70 % of the median for `steady` requests."""
    count = len(_pictures(photos)) * passes
    loops, full = [], []
    with service(_PATIENT) as running:
        _load(running.port, photos, count, concurrency=CONCURRENCY)
        for _ in range(rounds):
            loops.append(_bare_in_process(photos, passes))
            full.append(_load(running.port, photos, count, concurrency=CONCURRENCY)["requests_per_s"])
        rate = SHARE * statistics.median(full)
        calm = _load(running.port, photos, steady, rate=rate)
    ready = running.ready
    bare_rates = [loop["photos_per_s"] for loop in loops]
    photo_s = [statistics.median(times) for times in zip(*(loop["photo_s"] for loop in loops), strict=True)]
    ideal = references(photo_s, servers=loops[0]["cores"], rate=rate)
    return {
        "efficiency": round(statistics.median(full) / statistics.median(bare_rates), 3),
        "requests_per_s": statistics.median(full),
        "bare_photos_per_s": round(statistics.median(bare_rates), 2),
        "p50_ms": calm["p50_ms"],
        "p99_ms": calm["p99_ms"],
        "p99_over_p50": round(calm["p99_ms"] / calm["p50_ms"], 2),
        "p99_over_ideal": round(calm["p99_ms"] / ideal["queue"]["p99_ms"], 2),
        "ideal": ideal,
        "arrivals": "Poisson, open loop",
        "steady_rate_per_s": round(rate, 2),
        "steady_requests": calm["requests"],
        "rounds": {"bare_photos_per_s": [round(value, 2) for value in bare_rates], "requests_per_s": full},
        "concurrency": CONCURRENCY,
        "photos": len(_pictures(photos)),
        "provider": ready["provider"],
        "precision": ready["precision"],
        "detector": ready["detector"],
        "model": ready["model"],
        "cores": os.cpu_count(),
        "load_average_after": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure, print, and write the same as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIEN_PHOTOS_DIR", _SAMPLES)))
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5, help="over the photos, in every round")
    parser.add_argument("--steady", type=int, default=1000, help="requests at 70 percent of the load")
    parser.add_argument("--bare", action="store_true", help="only the bare loop: print its figures")
    given = parser.parse_args()
    if given.bare:
        print(json.dumps(bare(given.photos, given.passes)))
        return
    figures = measure(given.photos, rounds=given.rounds, passes=given.passes, steady=given.steady)
    publish(figures, given.json)


if __name__ == "__main__":
    main()
