"""Benchmark of `mien label`: speed, and overhead over a bare loop of the same stages.

`python -m benchmarks.labeling --json OUT` labels 350x350 one-face photos (or copies of `--photos FOLDER`) with
`mien label` and with a bare loop, and writes `efficiency`, `images_per_s`, `peak_rss_mb` and the time of every stage.
With `--ray`, the same photos are also labeled with `--engine ray` on a local cluster. To measure one core, use
`taskset -c 0 ... --workers 1`.

The bare loop decodes, detects, aligns and classifies photo by photo, with one thread per worker, and does nothing else:
no journal, no hashes, no outputs, one inference per photo. Both read the same files with the same pipelines. Rounds
alternate, and the best of each is reported, because other programs can only slow them down. The time of `mien label`
includes everything from scanning to the finished `labels.csv`; `_with_images` adds the default outputs, annotated
copies and report. `cpu_efficiency` compares CPU time. Memory is measured for one run in a separate process, see
`benchmarks.labeling_memory`. `ray_images_per_s` is measured from the start of Ray's workers.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from PIL import Image

from benchmarks.results import benchmark_parser, publish, results_of
from mien.app.inference.pipeline import Pipeline
from mien.app.labeling.facts import open_pipeline
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import IMAGE_EXTENSIONS
from mien.app.labeling.run import label
from mien.app.labeling.summary import Outcome
from mien.app.settings import Settings, load_settings

SAMPLES: Final = Path(__file__).resolve().parent.parent / "samples" / "photos"
_FACE_PX: Final = 350


def make_photos(folder: Path, source: Path | None, count: int) -> list[Path]:
    """Fill `folder` with `count` files: hard links to the images of `source`, or 350x350 one-face photos."""
    if source is None:
        originals = [_portrait(folder.parent / "portrait.jpg")]
    else:
        originals = sorted(path for path in source.rglob("*") if path.suffix.lower() in IMAGE_EXTENSIONS)
    paths = []
    for number in range(count):
        original = originals[number % len(originals)]
        path = folder / f"{number // 1000:04d}" / f"{number:07d}{original.suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(original, path)
        except OSError:  # another disk, or too many links
            shutil.copyfile(original, path)
        paths.append(path)
    return paths


def _portrait(path: Path) -> Path:
    """The face of the sample portrait, 350x350, as in data sets of aligned faces."""
    with Image.open(SAMPLES / "astronaut.jpg") as image:
        width, height = image.size
        side = min(width, height) * 6 // 10
        box = (width // 5, 0, width // 5 + side, side)
        image.convert("RGB").crop(box).resize((_FACE_PX, _FACE_PX)).save(path, "JPEG", quality=90)
    return path


def _bare(paths: list[Path], pipeline: Pipeline, workers: int) -> tuple[float, float]:
    """Only the four stages over all files. Returns: wall and CPU time, seconds."""
    with ThreadPoolExecutor(workers) as pool:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in pool.map(lambda path: pipeline.analyze(path.read_bytes()), paths):
            pass
        return time.perf_counter() - began, time.process_time() - cpu


def _ours(
    folder: Path, out: Path, outputs: tuple[str, ...], workers: int, settings: Settings
) -> tuple[float, float, Outcome]:
    """`mien label`. Returns: wall and CPU time, seconds, and the outcome."""
    options = LabelOptions(inputs=[str(folder)], out=out, outputs=list(outputs), workers=workers)
    cpu = time.process_time()
    outcome = label(options, settings, Reporter())
    # the time for opening the models is not included in the bare loop either
    return outcome.total_seconds, time.process_time() - cpu, outcome


def run_mien(folder: Path, *options: str, **process: Any) -> dict[str, Any]:
    """Summary of `mien label` in a process of its own. Raises: CalledProcessError."""
    command = [sys.executable, "-m", "mien", "label", str(folder), *options, "--json-log"]
    done = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, **process)
    summary: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return summary


def measure(  # every argument is an option of the command
    source: Path | None, *, count: int, rounds: int, workers: int, settings: Settings, ray: bool = False
) -> dict[str, Any]:
    """Alternate `mien label` and the bare loop; see the module docstring.

    Returns: rates in images per second, `*_ms` in milliseconds of worker time per image.
    """
    with tempfile.TemporaryDirectory(prefix="mien-bench-") as place:
        folder = Path(place) / "photos"
        paths = make_photos(folder, source, count)
        pipeline = open_pipeline(settings)
        _bare(paths[: 8 * workers], pipeline, workers)  # warm
        ours, with_images, bare = [], [], []
        for number in range(rounds):
            out = Path(place) / f"out{number}"
            bare.append(_bare(paths, pipeline, workers))
            ours.append(_ours(folder, out / "csv", ("csv",), workers, settings))
            with_images.append(_ours(folder, out / "all", DEFAULT_OUTPUTS, workers, settings))
            shutil.rmtree(out)
        memory = results_of("labeling_memory", folder, "--workers", workers)
        on_cluster = ("--out", f"{place}/ray", "--engine", "ray", "--workers", str(workers))
        on_ray = run_mien(folder, *on_cluster) if ray else None
    outcome = with_images[-1][2]
    best, best_bare, best_with_images = (min(timing[0] for timing in kind) for kind in (ours, bare, with_images))
    return {
        "efficiency": best_bare / best,
        "cpu_efficiency": min(timing[1] for timing in bare) / min(timing[1] for timing in ours),
        "efficiency_with_images": best_bare / best_with_images,
        "images_per_s": count / best,
        "images_per_s_with_images": count / best_with_images,
        "bare_images_per_s": count / best_bare,
        **{name: memory[name] for name in ("peak_rss_mb", "rss_mb_fifth", "rss_mb_end")},
        "images": count,
        "faces": sum(outcome.labels.values()),
        "workers": workers,
        "cores": os.cpu_count() or 1,
        "stage_ms": _stage_ms(outcome.stage_seconds, count),
        "ray_images_per_s": on_ray["images_per_s"] if on_ray else None,
        "ray_stage_ms": _stage_ms(on_ray["stage_seconds"], count) if on_ray else None,
        **{name: outcome.facts[name] for name in ("detector", "model", "provider")},
    }


def _stage_ms(seconds: dict[str, float], count: int) -> dict[str, float]:
    return {stage: 1000 * value / count for stage, value in seconds.items()}


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of photos (default: 350x350 one-face photos)")
    parser.add_argument("--count", type=int, default=2000, help="number of files (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="threads (one per core)")
    parser.add_argument("--ray", action="store_true", help="measure --engine ray as well")
    options = parser.parse_args()
    result = measure(
        options.photos,
        count=options.count,
        rounds=options.rounds,
        workers=options.workers,
        settings=load_settings(),
        ray=options.ray,
    )
    publish(result, options.json)


if __name__ == "__main__":
    main()
