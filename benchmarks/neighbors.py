r"""Faces found and images per second of neighboring projects and of Mien as cloned, on the same photos in one run.

    python -m venv FER && FER/bin/pip install fer "setuptools<81" "opencv-contrib-python<5"
    npm install --prefix JS @vladmandic/face-api @tensorflow/tfjs @tensorflow/tfjs-backend-wasm jpeg-js \
        onnxruntime-web@1.30.0
    python -m benchmarks.neighbors --fer FER/bin/python --js JS --json out/neighbors.json

A neighbor that is not given is skipped. 600 photos of 350x350 px with one face each: muxspace's validation faces,
enlarged, from the folder of data sets in MIEN_DATA_DIR. Every program reads the JPEG files in one process, with its
usual defaults and threads; its start is not counted. Rounds alternate, and the best of each is taken. Mien runs without
any `MIEN_*` variable and without downloaded files; with MIEN_MODELS_DIR, Mien with YuNet is a row of its own.
face-api.js and the page's local mode run in Node.js, in WebAssembly.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import cv2

from benchmarks.harness import benchmark_parser, publish
from benchmarks.labeling import run_mien
from mien.data.readers.base import open_reader
from mien.models.manifest import artifact_dir

PHOTO_PX: Final = 350
_HERE: Final = Path(__file__).resolve().parent
_ROOT: Final = _HERE.parent


def write_photos(folder: Path, data: Path, count: int) -> None:
    """Write `count` JPEG files of 350x350 px, the same ones each time."""
    reader = open_reader("muxspace", data / "muxspace")
    for number, sample in enumerate(reader.samples("valid")[:count]):
        photo = cv2.resize(reader.image(sample)[:, :, ::-1], (PHOTO_PX, PHOTO_PX), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number:04}.jpg"), photo, [cv2.IMWRITE_JPEG_QUALITY, 90])


def measure_mien(folder: Path, models_dir: str | None = None) -> dict[str, Any]:
    """`mien label` with its defaults. Raises: CalledProcessError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
    with tempfile.TemporaryDirectory(prefix="mien-bench-") as place:
        environment |= {"XDG_CACHE_HOME": place, "PYTHONPATH": str(_ROOT)}
        environment |= {"MIEN_MODELS_DIR": models_dir} if models_dir else {}
        facts = run_mien(folder, "--out", f"{place}/out", "--write", "csv", env=environment, cwd=_ROOT)
    images_per_s = facts["labeled_now"] / facts["seconds_labeling"]
    name = f"Mien, {facts['settings']['detector']}, {facts['settings']['precision']}"
    rates = {"images_per_s": images_per_s, "faces": sum(facts["faces"].values())}
    return {"program": name, "photos_with_face": facts["images"]["ok"], **rates}


def neighbor_commands(fer: Path | None, js: Path | None) -> dict[str, list[str]]:
    """Commands of the available programs of others, by name; they take a folder and a file for their predictions."""
    commands = {"fer": [str(fer), str(_HERE / "neighbors_fer.py")]} if fer else {}
    if js:
        commands["face-api.js"] = ["node", str(_HERE / "neighbors_face_api.cjs"), str(js.resolve())]
    return commands


def measure_script(command: list[str], folder: Path, *options: str) -> dict[str, Any]:
    """A neighbor's script, which prints its result as the last line. Raises: CalledProcessError."""
    done = subprocess.run([*command, str(folder), *options], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure all programs, and print the results."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--fer", type=Path, metavar="PYTHON", help="interpreter of an environment with fer")
    parser.add_argument("--js", type=Path, metavar="FOLDER", help="folder with node_modules")
    parser.add_argument("--count", type=int, default=600, help="photos (600)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each program (3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mien-photos-") as place:
        write_photos(Path(place), Path(os.environ["MIEN_DATA_DIR"]), options.count)
        runs: dict[str, Callable[[Path], dict[str, Any]]] = {"Mien as cloned": measure_mien}
        if models_dir := os.environ.get("MIEN_MODELS_DIR"):
            runs["Mien with YuNet"] = partial(measure_mien, models_dir=models_dir)
        commands = neighbor_commands(options.fer, options.js)
        if options.js:
            page = [str(_HERE / "neighbors_page.mjs"), str(artifact_dir(None) / "photo.int8.onnx")]
            commands["Mien's page, local mode"] = ["node", *page, str(options.js.resolve())]
        runs |= {name: partial(measure_script, command) for name, command in commands.items()}
        results = [{name: run(Path(place)) for name, run in runs.items()} for _ in range(options.rounds)]
    best = {name: max((row[name] for row in results), key=itemgetter("images_per_s")) for name in runs}
    publish({"photos": options.count, "programs": best}, options.json)


if __name__ == "__main__":
    main()
