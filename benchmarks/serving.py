"""What does the service cost on top of its own stages, and how steady is it below full load?

    python -m benchmarks.serving --json out/serving.json
    python -m benchmarks.serving --photos ../photos --rounds 5 --json out/serving.json

Three programs take turns on the same cores: a bare loop of decode, detect, align, classify in one process, as many
threads as there are cores; the service under 16 clients; the service at 70 % of what it has just borne, with requests
at random moments (Poisson). Load comes from a process of its own over loopback, so the service pays for that one, too.
`efficiency` is requests per second of the service over photos per second of the bare loop. Model, detector and device
are those that the environment says (`MIEN_*`). Run it on a quiet machine.
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
from typing import Any, Final

from benchmarks.background import service
from benchmarks.load import TYPES

CONCURRENCY: Final = 16
SHARE: Final = 0.7
_SAMPLES: Final = Path(__file__).resolve().parent.parent / "samples" / "photos"
_PATIENT: Final = {"MIEN_MAX_WAIT_S": "60"}  # the question is how fast, not who is refused


def bare_rate(photos: Path, passes: int) -> float:
    """Photos per second of a loop over the pipeline in this process; the better of two ways to use the cores."""
    from app.pipeline import build_pipeline
    from app.service import cores
    from app.settings import load_settings

    payloads = [path.read_bytes() for path in _pictures(photos)]
    best = 0.0
    for loops, threads in ((cores(), 1), (1, 0)):
        pipeline = build_pipeline(load_settings(threads=threads))
        with ThreadPoolExecutor(loops) as pool:
            list(pool.map(pipeline.analyse, payloads))
            start = time.perf_counter()
            list(pool.map(pipeline.analyse, payloads * passes))
            best = max(best, len(payloads) * passes / (time.perf_counter() - start))
    return best


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in TYPES)


def _bare_in_process(photos: Path, passes: int) -> float:
    command = [sys.executable, "-m", "benchmarks.serving", "--bare", "--photos", str(photos), "--passes", str(passes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


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
    bare, full = [], []
    with service(_PATIENT) as running:
        _load(running.port, photos, count, concurrency=CONCURRENCY)
        for _ in range(rounds):
            bare.append(_bare_in_process(photos, passes))
            full.append(_load(running.port, photos, count, concurrency=CONCURRENCY)["requests_per_s"])
        rate = SHARE * statistics.median(full)
        calm = _load(running.port, photos, steady, rate=rate)
    ready = running.ready
    return {
        "efficiency": round(statistics.median(full) / statistics.median(bare), 3),
        "requests_per_s": statistics.median(full),
        "bare_photos_per_s": round(statistics.median(bare), 2),
        "p50_ms": calm["p50_ms"],
        "p99_ms": calm["p99_ms"],
        "p99_over_p50": round(calm["p99_ms"] / calm["p50_ms"], 2),
        "steady_rate_per_s": round(rate, 2),
        "steady_requests": calm["requests"],
        "rounds": {"bare_photos_per_s": [round(value, 2) for value in bare], "requests_per_s": full},
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
    parser.add_argument("--bare", action="store_true", help="only the bare loop: print its photos per second")
    given = parser.parse_args()
    if given.bare:
        print(bare_rate(given.photos, given.passes))
        return
    figures = measure(given.photos, rounds=given.rounds, passes=given.passes, steady=given.steady)
    text = json.dumps(figures, indent=2)
    print(text)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
