"""Accuracy and calibration of a classifier on corrupted faces: `mien evaluate --corruptions`.

Probabilities are softened as in serving, as if the landmarks were those of the template.

Noise, blur, JPEG, brightness and contrast are those of ImageNet-C (Hendrycks and Dietterich 2019), with blur scaled
from 224 to 112 pixels, and brightness added to each color instead of the value of HSV. The others concern faces: size,
occlusion, roll, and error of the landmarks for the alignment.
"""

from dataclasses import replace
from typing import Any, Final

import albumentations as A
import cv2
import numpy as np

from mien.data.contract import CROP_PX, TEMPLATE_PX, Array, similarity
from mien.training.data import Split
from mien.training.evaluate import Model, scores
from mien.training.metrics import interval, percent, print_table

STRENGTHS: Final = {
    "face size, px": (84, 56, 36, 24, 12),
    "blur, sigma in px": (0.5, 1.0, 1.5, 2.0, 3.0),
    "noise, std": (0.08, 0.12, 0.18, 0.26, 0.38),
    "JPEG quality": (25, 18, 15, 10, 7),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "eyes covered, share": (0.2, 0.4, 0.6, 0.8, 1.0),
    "mouth covered, share": (0.2, 0.4, 0.6, 0.8, 1.0),
    "roll, degrees": (10, 20, 30, 45, 60),
    "landmark error, share of eye distance": (0.02, 0.04, 0.06, 0.08, 0.1),
}
_EYE_DISTANCE_PX: Final = TEMPLATE_PX[1][0] - TEMPLATE_PX[0][0]
_HALF_BAND_PX: Final = 16


def corrupt(crop: Array, corruption: str, strength: float, *, seed: int) -> Array:
    """Corrupt one crop, (112, 112, 3) uint8 RGB; equal seeds give equal results."""
    kind = corruption.split(",", maxsplit=1)[0]
    if kind == "face size":
        small = cv2.resize(crop, (int(strength), int(strength)), interpolation=cv2.INTER_AREA)
        return np.asarray(cv2.resize(small, (CROP_PX, CROP_PX), interpolation=cv2.INTER_CUBIC))
    if kind == "contrast":
        mean = crop.mean(axis=(0, 1))
        return np.asarray(np.clip(np.rint((crop - mean) * strength + mean), 0, 255), np.uint8)
    if kind in ("eyes covered", "mouth covered"):
        row = TEMPLATE_PX[0][1] if kind == "eyes covered" else TEMPLATE_PX[3][1]
        top, bottom = round(row - strength * _HALF_BAND_PX), round(row + strength * _HALF_BAND_PX)
        covered = crop.copy()
        covered[top:bottom] = 127
        return covered
    if kind in ("roll", "landmark error"):
        matrix = cv2.getRotationMatrix2D((CROP_PX / 2, CROP_PX / 2), strength, 1.0)
        if kind == "landmark error":  # the face is aligned by points that are off
            errors = np.random.default_rng(seed).normal(0, strength * _EYE_DISTANCE_PX, (5, 2))
            matrix = similarity(np.asarray(TEMPLATE_PX) + errors)
        return np.asarray(cv2.warpAffine(crop, matrix, (CROP_PX, CROP_PX), borderMode=cv2.BORDER_REPLICATE))
    transform = A.Compose([{
        "blur": lambda: A.GaussianBlur(blur_limit=0, sigma_limit=(strength, strength), p=1),
        "noise": lambda: A.GaussNoise(std_range=(strength, strength), p=1),
        "JPEG quality": lambda: A.ImageCompression(quality_range=(int(strength), int(strength)), p=1),
        "brightness": lambda: A.RandomBrightnessContrast((strength, strength), (0, 0), p=1),
    }[kind]()])  # fmt: skip
    transform.set_random_seed(seed)
    corrupted: Array = transform(image=crop)["image"]
    return corrupted


def measure(model: Model, faces: Split) -> list[dict[str, Any]]:
    """Print and return the scores of the original faces, with strength 0, and of each corruption at each strength.

    They are of the served probabilities.
    """
    prior, rows = model.priors[-1], list[dict[str, Any]]()
    for corruption, strength in (("none", 0.0), *((name, of) for name, all_of in STRENGTHS.items() for of in all_of)):
        seen = faces
        if strength:
            crops = [corrupt(crop, corruption, strength, seed=number) for number, crop in enumerate(faces.crops)]
            seen = replace(faces, crops=np.stack(crops))
        found = scores(seen, model.probabilities(model.logits(seen.crops), seen, prior), prior=prior)
        rows.append({"corruption": corruption, "strength": strength, **found})
    shares = ("accuracy", "mean_class_accuracy")
    cells = [
        (row["corruption"], f"{row['strength']:g}", *(interval(row[name], 1) for name in shares), percent(row["ece"]))
        for row in rows
    ]
    heads = ("corruption", "strength", "accuracy", "mean class accuracy", "ECE")
    print_table(heads, cells, title=f"{model.name} on {faces.title}, {prior}")
    return rows
