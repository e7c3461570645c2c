"""Benchmark of `mien label`: speed, and overhead over a bare loop of the same stages.

`python -m benchmarks.labeling --json OUT` labels 350x350 one-face photos (or copies of `--photos FOLDER`) with
`mien label` and with a bare loop, and writes `efficiency`, `images_per_s` and the time of every stage. Start it with
`taskset -c 0` to measure one core.

The bare loop decodes, detects, aligns and classifies photo by photo, with one thread per worker, and does nothing else:
no journal, no hashes, no outputs, one inference per photo. Both read the same files with the same pipelines. Rounds
alternate, and the best of each is reported, because other programs can only slow them down. The time of `mien label`
includes everything from scanning to the finished `labels.csv`; `_with_images` adds the default outputs, annotated
copies and report.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image

from benchmarks.harness import SAMPLES, bare_s, benchmark_parser, publish
from mien.app.cpu_count import cores
from mien.app.labeling.executors import open_labeler, with_limits
from mien.app.labeling.inputs import IMAGE_EXTENSIONS
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.run import label
from mien.app.settings import load_settings

_FACE_PX: Final = 350


def make_photos(folder: Path, source: Path | None, count: int) -> list[Path]:
    """Fill `folder` with `count` files: hard links to the images of `source`, or 350x350 one-face photos."""
    if source is None:  # the face of the sample portrait, as in data sets of aligned faces
        originals = [folder.parent / "portrait.jpg"]
        with Image.open(SAMPLES / "astronaut.jpg") as image:
            width, height = image.size
            side = min(width, height) * 6 // 10
            face = image.convert("RGB").crop((width // 5, 0, width // 5 + side, side))
            face.resize((_FACE_PX, _FACE_PX)).save(originals[0], quality=90)
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


def run_mien(folder: Path, *options: str, **process: Any) -> dict[str, Any]:
    """`run.json` of `mien label` in a process of its own. Raises: CalledProcessError."""
    command = [sys.executable, "-m", "mien", "label", str(folder), *options, "--quiet"]
    subprocess.run(command, check=True, **process)
    facts: dict[str, Any] = json.loads((Path(options[options.index("--out") + 1]) / "run.json").read_text())
    return facts


def measure(photos: Path | None, *, count: int, rounds: int, workers: int) -> dict[str, Any]:
    """Alternate `mien label` and the bare loop; see the module docstring.

    Returns: rates in images per second, `stage_ms` in milliseconds of worker time per image.
    """
    best_s = {"images_per_s": math.inf, "images_per_s_with_images": math.inf, "bare_images_per_s": math.inf}
    with tempfile.TemporaryDirectory(prefix="mien-bench-") as place:
        folder, out = Path(place) / "photos", Path(place) / "out"
        paths, settings = make_photos(folder, photos, count), load_settings()
        pipeline = open_labeler(with_limits(settings))
        bare_s(pipeline, paths[: 8 * workers], workers)  # warm
        for _ in range(rounds):
            best_s["bare_images_per_s"] = min(best_s["bare_images_per_s"], bare_s(pipeline, paths, workers))
            for name, outputs in (("images_per_s", ("csv",)), ("images_per_s_with_images", DEFAULT_OUTPUTS)):
                options = LabelOptions(
                    inputs=[str(folder)], out=out, outputs=list(outputs), workers=workers, quiet=True
                )
                run = label(options, settings)
                # without the opening of the models, as in the bare loop
                best_s[name] = min(best_s[name], run["seconds"])
                shutil.rmtree(out)
    return {
        "efficiency": best_s["bare_images_per_s"] / best_s["images_per_s"],
        **{name: count / seconds for name, seconds in best_s.items()},
        "images": count,
        "faces": sum(run["faces"].values()),
        "workers": workers,
        "stage_ms": {stage: 1000 * seconds / count for stage, seconds in run["stage_seconds"].items()},
        **{name: run["settings"][name] for name in ("detector", "model", "provider")},
    }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of photos (default: 350x350 one-face photos)")
    parser.add_argument("--count", type=int, default=2000, help="number of files (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--workers", type=int, default=cores(), help="processes, threads (one per core)")
    options = vars(parser.parse_args())
    path = options.pop("json")
    publish(measure(**options), path)


if __name__ == "__main__":
    main()
