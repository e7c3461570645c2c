"""Benchmark of the reason `covered` on photos of people with and without masks, and the fit of its weights.

    MIEN_DATA_DIR=... MIEN_MODELS_DIR=... python -m benchmarks.covered [--fit] [--held-out FOLDER ...] --json out.json

Below MIEN_DATA_DIR: `masks`, photos of people with masks; `detector/faces` and `detector/muxspace`, without; `ferplus`.
Faces are detected by both detectors and aligned as in serving. By the SHA-256 of the photo's name, three fifths of the
photos are for the fit, one fifth is for the limit, and one fifth is measured; of FERPlus, train is for the first two
and valid is measured. `--held-out` names more photos without masks, which are only measured.

The fit is a logistic regression on `cover_features`: of each face, mirrored too, of a part of them blurred, small,
dark or gray, and of some faces without masks that get a drawn object over eyes or mouth.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.results import benchmark_parser, publish
from mien.app.inference.detect import create_detector
from mien.app.settings import load_settings
from mien.data.contract import Array, DecodeError, align, decode
from mien.data.quality import COVER_FILE, COVERED_LIMIT, cover_features
from mien.data.readers.base import open_reader
from mien.training.config import DATA_DIR_VARIABLE
from mien.training.release.conditions import cover, degrade

PARTS: Final = ("fit", "limit", "test")
_FALSE: Final = 0.025  # of the faces without masks of each source, at most; some of them are covered by other things
_FERPLUS_FACES: Final = {"train": 6000, "valid": 2000}
_MILD: Final = {"blur, sigma in px": (0.5, 3.0), "face width, px": (11.0, 38.0), "brightness": (0.03, 0.3)}


@dataclass(frozen=True, slots=True)
class Faces:
    """Crops of one source and detector, and the part they belong to: fit, limit or test."""

    name: str
    masked: bool
    crops: list[Array]
    parts: Array

    def of(self, part: str) -> list[Array]:
        return [crop for crop, of_crop in zip(self.crops, self.parts, strict=True) if of_crop == part]


def part_of(name: str) -> str:
    """Part of a photo by its name: the same for both detectors and on every machine."""
    return PARTS[max(0, int(hashlib.sha256(name.encode()).hexdigest(), 16) % 5 - 2)]


def detect_faces(folder: Path, parts: Sequence[str], *, masked: bool = False) -> Iterator[Faces]:
    """Faces of the photos below a folder that are in one of `parts`, by detector."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and part_of(path.name) in parts]
    for detector_name in ("builtin", "yunet"):
        detector = create_detector(load_settings(detector=detector_name, threads=1))
        crops, part_of_crop = [], []
        for path in paths:
            try:
                image = decode(path.read_bytes())
            except DecodeError:
                continue
            for face in detector.detect(image):
                crops.append(align(image, face.landmarks_px))
                part_of_crop.append(part_of(path.name))
        yield Faces(f"{folder.name}, {detector_name}", masked, crops, np.array(part_of_crop))


def ferplus_faces(root: Path, rng: np.random.Generator) -> Faces:
    """Random faces of FERPlus."""
    reader, crops, parts = open_reader("ferplus", root), [], []
    for split, count in _FERPLUS_FACES.items():
        samples = reader.labeled(split)
        for index in rng.permutation(len(samples))[:count]:
            crops.append(reader.crop(samples[index]))
            parts.append("test" if split == "valid" else "limit" if len(crops) % 4 == 0 else "fit")
    return Faces("ferplus", False, crops, np.array(parts))


def fit(sources: Sequence[Faces], rng: np.random.Generator) -> tuple[Array, float]:
    """Weights and bias: above `COVERED_LIMIT`, at most `_FALSE` of the other faces of each source for the limit."""
    features, targets = [], []
    for faces in sources:
        for crop in faces.of("fit"):
            for seen in (crop, np.ascontiguousarray(crop[:, ::-1])):
                changed = seen
                if rng.random() < 0.5:
                    condition = list(_MILD)[rng.integers(len(_MILD))]
                    strength = rng.uniform(*_MILD[condition])
                    changed, _ = degrade(seen, condition, strength, seed=int(rng.integers(2**31)))
                samples = [(changed, faces.masked)]
                if rng.random() < 0.3:
                    samples.append((_gray(changed), faces.masked))
                if not faces.masked and rng.random() < 0.1:
                    drawn = cover(changed, str(rng.choice(["eyes", "mouth"])), rng)
                    samples.append((drawn if rng.random() < 0.5 else _gray(drawn), True))
                features += [cover_features(sample) for sample, _ in samples]
                targets += [is_covered for _, is_covered in samples]
    model = LogisticRegression(C=0.003, max_iter=200).fit(np.stack(features), targets)
    weights = np.round(model.coef_[0], 3).astype(np.float32)
    limits = [
        np.quantile([float(cover_features(crop) @ weights) for crop in crops], 1 - _FALSE)
        for crops in (faces.of("limit") for faces in sources if not faces.masked)
        if crops
    ]
    return weights, round(COVERED_LIMIT - float(max(limits)), 3)


def _gray(crop: Array) -> Array:
    return cv2.cvtColor(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def measure_covered(
    sources: Sequence[Faces], weights: Array, bias: float, rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """Number and share of `covered` faces among the measured ones, by source; then of the same with drawn objects."""

    def share(crops: Sequence[Array]) -> dict[str, float]:
        covered = [float(cover_features(crop) @ weights) + bias > COVERED_LIMIT for crop in crops]
        return {"faces": len(covered), "covered": round(float(np.mean(covered)), 4)}

    results = {faces.name: share(crops) for faces in sources if (crops := faces.of("test"))}
    uncovered = [crop for faces in sources if not faces.masked for crop in faces.of("test")]
    for part in ("eyes", "mouth") if uncovered else ():
        chosen = rng.permutation(len(uncovered))[:1000]
        results[f"drawn object over the {part}"] = share([cover(uncovered[index], part, rng) for index in chosen])
    return results


def main() -> None:
    """Measure the released weights, or fit and measure new ones."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the weights and write them to data/cover.json")
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="folders of photos without masks")
    options = parser.parse_args()
    rng, root = np.random.default_rng(0), Path(os.environ[DATA_DIR_VARIABLE])
    parts = PARTS if options.fit else ("test",)
    sources = [*detect_faces(root / "masks", parts, masked=True), ferplus_faces(root / "ferplus", rng)]
    sources += [faces for name in ("faces", "muxspace") for faces in detect_faces(root / "detector" / name, parts)]
    for folder in options.held_out:
        for faces in detect_faces(folder, PARTS):
            sources.append(replace(faces, parts=np.full(len(faces.crops), "test")))
    if options.fit:
        weights, bias = fit(sources, rng)
        fitted = {"bias": bias, "weights": [round(float(weight), 3) for weight in weights]}
        COVER_FILE.write_text(json.dumps(fitted) + "\n", encoding="utf-8")
    fitted = json.loads(COVER_FILE.read_text(encoding="utf-8"))
    weights, bias = np.array(fitted["weights"], np.float32), fitted["bias"]
    publish(measure_covered(sources, weights, bias, np.random.default_rng(1)), options.json)


if __name__ == "__main__":
    main()
