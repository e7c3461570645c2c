"""Fit what tells covered eyes and mouths: the weights in data/cover.json.

    python -m tools.fit_cover --ferplus ROOT --muxspace ROOT

Logistic regression on `cover_features` of train faces, a part of them blurred, small, dark or mirrored; eyes or mouth
of some are covered by objects (training/conditions.py). Each release chooses the limit on its validation split.
"""

import argparse
import json
from pathlib import Path

import cv2
import numpy as np
from sklearn.linear_model import LogisticRegression

from mien.data.contract import Array
from mien.data.quality import COVER_FILE, COVER_PARTS, cover_features
from mien.data.readers.base import open_reader
from mien.training.conditions import cover, degrade

_FACES = 12_000
_MILD = {"blur, sigma in px": (0.5, 3.0), "face width, px": (11.0, 38.0), "brightness": (0.03, 0.3)}


def sample(crop: Array, rng: np.random.Generator) -> tuple[list[Array], str]:
    """Features of both parts of a face, and which part is covered: eyes, mouth, or neither."""
    seed = int(rng.integers(2**31))
    if rng.random() < 0.6:
        condition = list(_MILD)[rng.integers(len(_MILD))]
        crop, _ = degrade(crop, condition, rng.uniform(*_MILD[condition]), seed=seed)
    if rng.random() < 0.5:
        crop = np.ascontiguousarray(crop[:, ::-1])
    part = str(rng.choice(["", *COVER_PARTS], p=[0.4, 0.3, 0.3]))
    crop = cover(crop, part, rng) if part else crop
    return cover_features(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)), part


def main() -> None:
    """Fit and write the weights."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.fit_cover", description="Fit the weights of data/cover.json."
    )
    parser.add_argument("--ferplus", type=Path, required=True, help="folder of FERPlus")
    parser.add_argument("--muxspace", type=Path, required=True, help="folder of muxspace")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    crops = []
    for kind, root, count in (
        ("ferplus", options.ferplus, 2 * _FACES // 3),
        ("muxspace", options.muxspace, _FACES // 3),
    ):
        reader = open_reader(kind, root)
        samples = reader.labeled("train")
        crops += [reader.crop(samples[index]) for index in rng.choice(len(samples), count, replace=False)]
    features, covered = zip(*(sample(crop, rng) for crop in crops), strict=True)
    fitted = {}
    for place, part in enumerate(COVER_PARTS):
        model = LogisticRegression(C=0.01, max_iter=1000)
        model.fit(np.stack([both[place] for both in features]), [name == part for name in covered])
        weights = [round(float(weight), 3) for weight in model.coef_[0]]
        fitted[part] = {"bias": round(float(model.intercept_[0]), 3), "weights": weights}
    COVER_FILE.write_text(json.dumps(fitted) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
