"""Accuracy of a model as a function of the conditions of a photo, and the limits of the reasons for doubt.

`mien export` measures them on faces of the validation split that are degraded step by step, and states them in manifest
and card. From the same faces, it fits by how much the probabilities of blurred, turned and covered faces must be
softened to be as right as they say: a linear increase of the temperature, which changes no label.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from mien.data.contract import CROP_PX, Array
from mien.data.contract.align import TEMPLATE_PX, similarity
from mien.data.quality import AMBIGUOUS_BELOW, COVERED_LIMIT, FACE_SHARE, REASONS, Quality, measure
from mien.models.manifest import Condition, Conditions, Interval, Manifest, ReasonLimit, Softening
from mien.training import metrics
from mien.training.faces import Split
from mien.training.robustness import corrupt

logger = logging.getLogger("mien.training")

FACES: Final = 1000
_OBJECTS: Final = "objects over eyes or mouth"
STRENGTHS: Final = {  # from mild to strong
    "face width, px": (32, 26, 19, 13, 10, 6.5),
    "blur, sigma in px": (1.0, 2.0, 3.0, 4.0, 6.0),
    "yaw, degrees": (15, 30, 45, 60),
    "brightness": (0.2, 0.1, 0.05, 0.025),
    "contrast": (0.4, 0.2, 0.1, 0.05),
    "eyes covered, share": (0.2, 0.4, 0.7, 1.0),
    "mouth covered, share": (0.2, 0.4, 0.7, 1.0),
    "roll, degrees": (10, 20, 30, 45),
    "landmark error, share of eye distance": (0.05, 0.1, 0.15),
    _OBJECTS: (1.0, 2.0, 3.0, 4.0),  # numbers of random objects, not strengths
}
# Reason for doubt: the condition that shows it, and the property that tells it.
_SHOWN_BY: Final[dict[str, tuple[str, Callable[[Quality], float]]]] = {
    "small": ("face width, px", lambda quality: quality.width_px),
    "blurred": ("blur, sigma in px", lambda quality: quality.blur_px),
    "turned": ("yaw, degrees", lambda quality: abs(quality.yaw_degrees)),
    "dark": ("brightness", lambda quality: quality.brightness),
    "covered": (_OBJECTS, lambda quality: quality.covered),
}
_LOWER_IS_WORSE: Final = ("small", "dark")
_DRAWS: Final = 3  # random degradations of each face
_NOISE_STD: Final = 2.0  # of dark faces, in gray levels
_HEAD_PX: Final = 46.0  # radius of a head as a cylinder, in pixels of the crop
_NOSE_PX: Final = 14.0  # by which the nose is before it


@dataclass(frozen=True, slots=True)
class Step:
    """All faces with one degradation of one strength: balanced probabilities (N, K), and their properties."""

    condition: str
    strength: float
    probabilities: Array
    quality: list[Quality]

    def values(self, reason: str) -> Array:
        return np.array([_SHOWN_BY[reason][1](quality) for quality in self.quality])

    @property
    def value(self) -> float:
        """The median of the property, or the strength of a condition that no reason tells."""
        told = [reason for reason, (condition, _) in _SHOWN_BY.items() if condition == self.condition]
        return float(np.median(self.values(told[0]))) if told and told[0] != "covered" else self.strength


def degrade(crop: Array, condition: str, strength: float, *, seed: int) -> tuple[Array, Array]:
    """Degrade one crop, (112, 112, 3) uint8 RGB; equal seeds give equal results.

    Returns: the crop, and the landmarks (5, 2) of the face in a photo of it.
    """
    rng, template = np.random.default_rng(seed), np.array(TEMPLATE_PX)
    kind = condition.split(",", maxsplit=1)[0]
    if kind == "face width":
        side = round(strength / FACE_SHARE)
        small = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
        return cv2.resize(small, (CROP_PX, CROP_PX), interpolation=cv2.INTER_LINEAR), template * side / CROP_PX
    if kind == "none":
        return crop, template
    if kind == "yaw":
        return turned(crop, strength if seed % 2 else -strength)
    if kind == "brightness":  # less light, and the noise of a camera
        darker = crop * min(1.0, strength / (crop.mean() / 255)) + rng.normal(0, _NOISE_STD, crop.shape[:2])[..., None]
        return np.clip(np.rint(darker), 0, 255).astype(np.uint8), template
    if condition == _OBJECTS:
        rng = np.random.default_rng((seed, int(strength)))
        return cover(crop, "eyes" if (seed + strength) % 2 else "mouth", rng), template
    return corrupt(crop, condition, strength if seed % 2 or kind != "roll" else -strength, seed=seed), template


def turned(crop: Array, yaw_degrees: float) -> tuple[Array, Array]:
    """Turn a face, as if it were painted on a cylinder, and align it again; see `degrade`."""
    angle, columns = math.radians(yaw_degrees), np.arange(CROP_PX) - CROP_PX / 2
    seen = np.arcsin(np.clip(columns / _HEAD_PX, -1, 1)) - angle  # where on the cylinder each column is
    source = _HEAD_PX * np.sin(np.clip(seen, -math.pi / 2, math.pi / 2))
    source += columns - np.clip(columns, -_HEAD_PX, _HEAD_PX)  # beside the head
    map_x = np.tile((source + CROP_PX / 2).astype(np.float32), (CROP_PX, 1))
    map_y = np.indices((CROP_PX, CROP_PX), np.float32)[0]
    image = cv2.remap(crop, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    landmarks = np.array(TEMPLATE_PX)
    place = np.arcsin((landmarks[:, 0] - CROP_PX / 2) / _HEAD_PX) + angle
    radius = _HEAD_PX + np.array([0, 0, _NOSE_PX, 0, 0])
    landmarks[:, 0] = CROP_PX / 2 + radius * np.sin(np.clip(place, -math.pi / 2, math.pi / 2))
    return cv2.warpAffine(image, similarity(landmarks), (CROP_PX, CROP_PX), borderMode=cv2.BORDER_REPLICATE), landmarks


def cover(crop: Array, part: str, rng: np.random.Generator) -> Array:
    """Cover eyes or mouth with an object of one color, a textured one, one of the color of the skin, or sunglasses."""
    row = TEMPLATE_PX[0][1] if part == "eyes" else TEMPLATE_PX[3][1]
    center = (CROP_PX / 2 + rng.normal(0, 4), row + rng.normal(0, 3))
    mask = np.zeros((CROP_PX, CROP_PX), np.float32)
    kind = str(rng.choice(["plain", "textured", "skin", "glasses" if part == "eyes" else "skin"]))
    coarse = rng.normal(0, 1, (rng.integers(2, 24),) * 2).astype(np.float32)
    texture = cv2.resize(coarse, (CROP_PX, CROP_PX), interpolation=cv2.INTER_CUBIC)
    if kind == "glasses":
        for x, _ in TEMPLATE_PX[:2]:
            cv2.ellipse(mask, ((x, center[1] + 2), (rng.uniform(26, 40), rng.uniform(20, 32)), rng.normal(0, 5)), 1, -1)
        bridge = int(center[1]) - 3
        cv2.line(mask, (0, bridge), (CROP_PX - 1, bridge), 1, int(rng.integers(2, 5)))
        filling = rng.uniform(5, 60) + rng.uniform(0, 12) * texture
    else:
        size = (2 * rng.uniform(34 if part == "eyes" else 26, 60), 2 * rng.uniform(9, 20))
        box = (center, size, float(rng.normal(0, 8)))
        if rng.random() < 0.5:
            cv2.ellipse(mask, box, 1, -1)
        else:
            cv2.fillPoly(mask, [cv2.boxPoints(box).astype(int)], 1)
        skin = float(np.median(crop[20:100, 20:92])) + rng.normal(0, 12)
        contrast = {"plain": 0.0, "textured": rng.uniform(10, 60), "skin": rng.uniform(3, 18)}[kind]
        filling = (skin if kind == "skin" else rng.uniform(0, 255)) + contrast * texture
    opacity = cv2.GaussianBlur(mask, (0, 0), rng.uniform(0.4, 1.5))[..., None]
    return np.clip(crop * (1 - opacity) + filling[..., None] * opacity, 0, 255).astype(np.uint8)


def measure_conditions(
    manifest: Manifest, classify: Callable[[Array], Array], valid: Split, cross_fitted: Array
) -> Manifest:
    """Measure accuracy and calibration under each condition, and fit the threshold to softened probabilities.

    Args:
        manifest: with temperature and correction.
        classify: logits (N, K) of crops (N, 112, 112, 3) uint8 RGB.
        valid: the validation split; at most `FACES` random faces are degraded.
        cross_fitted: balanced probabilities (N, K) of its faces.
    Returns: the manifest with conditions and threshold.
    """
    faces = valid.sample(FACES)
    labels, count = faces.labels, len(faces)

    def degraded(condition: str, strength: float) -> Step:
        pairs = [degrade(crop, condition, strength, seed=number) for number, crop in enumerate(faces.crops)]
        probabilities = manifest.probabilities(classify(np.stack([crop for crop, _ in pairs])), "balanced")
        return Step(condition, strength, probabilities, [measure(*pair) for pair in pairs])

    original = degraded("none", 0.0)
    steps: dict[str, list[Step]] = {}
    for number, (condition, strengths) in enumerate(STRENGTHS.items(), start=1):
        logger.info("condition %d of %d: %s", number, len(STRENGTHS), condition)
        steps[condition] = [degraded(condition, strength) for strength in strengths]
    # The softening is fitted on one half of the faces, and its results are of the other half.
    fitted = np.random.default_rng(1).permutation(count) % 2 == 0
    softened_for = (_SHOWN_BY[reason][0] for reason in ("small", "blurred", "turned", "covered"))
    taught = [original, *(step for condition in softened_for for step in steps[condition])]
    softening = fit_softening(taught, labels, fitted)
    softened = _soften(softening, cross_fitted, [measure(crop, np.array(TEMPLATE_PX)) for crop in valid.crops])
    threshold = round(metrics.confidence_threshold(softened, valid.labels), 4)
    conditions = {}
    for condition, part in steps.items():
        right = np.stack([step.probabilities.argmax(axis=1) == labels for step in (original, *part)])
        known = [reason for reason, (name, _) in _SHOWN_BY.items() if name == condition and reason != "covered"]
        usual = float(np.median(original.values(known[0]))) if known else 1.0 if condition == "contrast" else 0.0
        values = [usual, *(step.value for step in part)]
        tested = np.tile(labels[~fitted], len(part))
        before = np.concatenate([step.probabilities[~fitted] for step in part])
        after = np.concatenate([_soften(softening, step.probabilities, step.quality)[~fitted] for step in part])
        conditions[condition] = Condition(
            minus_5=None if condition == _OBJECTS else _crossing(values, right, 0.05),
            minus_15=None if condition == _OBJECTS else _crossing(values, right, 0.15),
            measured=tuple((round(at, 3), metrics.share(row)) for at, row in zip(values[1:], right[1:], strict=True)),
            ece_unsoftened=metrics.ece(before, tested),
            ece=metrics.ece(after, tested),
        )
    limits = {"covered": COVERED_LIMIT}
    for reason, (condition, _) in _SHOWN_BY.items():
        if reason not in limits and (crossing := conditions[condition].minus_5):
            limits[reason] = round(crossing.value, 3)

    # Every face with random degradations of random strengths
    rng = np.random.default_rng(2)
    shown = [[original], *(steps[condition] for condition, _ in _SHOWN_BY.values())]
    chosen = [
        part[rng.integers(len(part))] for part in (shown[rng.integers(len(shown))] for _ in range(count * _DRAWS))
    ]
    index = np.arange(count * _DRAWS) % count
    drawn = np.stack([step.probabilities[row] for step, row in zip(chosen, index, strict=True)])
    quality = [step.quality[row] for step, row in zip(chosen, index, strict=True)]
    soft = _soften(softening, drawn, quality)
    right = drawn.argmax(axis=1) == labels[index]
    agrees = drawn.argmax(axis=1) == original.probabilities.argmax(axis=1)[index]
    reasons = {}
    for reason, limit in limits.items():

        def beyond(values: Array, limit: float = limit, *, lower: bool = reason in _LOWER_IS_WORSE) -> Array:
            return values < limit if lower else values > limit

        condition, read = _SHOWN_BY[reason]
        has = beyond(np.array([read(face) for face in quality]))
        strong = [
            beyond(step.values(reason))
            for step in steps[condition]
            if reason == "covered" or beyond(np.array([step.value])).all()
        ]
        reasons[reason] = ReasonLimit(
            limit=limit,
            faces=int(has.sum()),
            accuracy=metrics.share(right[has]),
            agreement=metrics.share(agrees[has]),
            detected=metrics.share(np.concatenate(strong)) if strong else None,
            false=metrics.share(beyond(original.values(reason))),
        )
    two = np.sort(soft, axis=1)[:, -2:]
    close = two[:, 1] < AMBIGUOUS_BELOW * two[:, 0]
    reasons["ambiguous"] = ReasonLimit(
        limit=AMBIGUOUS_BELOW,
        faces=int(close.sum()),
        accuracy=metrics.share(right[close]),
        agreement=metrics.share(agrees[close]),
    )
    tested = ~fitted[index]
    kept = int((soft[tested].max(axis=1) >= threshold).sum())
    certain, certain_unsoftened = (
        metrics.share(right[tested][np.argsort(-values[tested].max(axis=1), kind="stable")[:kept]])
        for values in (soft, drawn)
    )
    measured = Conditions(
        data=faces.kind,
        split=faces.name,
        faces=count,
        command=f"mien export models/artifacts/{manifest.name} --conditions",
        accuracy=metrics.share(original.probabilities.argmax(axis=1) == labels),
        conditions=conditions,
        reasons={name: reasons[name] for name in REASONS if name in reasons},
        softening=softening,
        certain_share=kept / int(tested.sum()),
        certain=certain,
        certain_unsoftened=certain_unsoftened,
    )
    return manifest.model_copy(update={"confidence_threshold": threshold, "conditions": measured})


def fit_softening(steps: Sequence[Step], labels: Array, fitted: Array) -> Softening:
    """Slopes that minimize the negative log likelihood of the faces `fitted`, (N,) bool, in all steps."""
    logs = np.log(np.maximum(np.concatenate([step.probabilities[fitted] for step in steps]), 1e-12))
    actual = np.tile(labels[fitted], len(steps))
    faces = [face for step in steps for face, chosen in zip(step.quality, fitted, strict=True) if chosen]
    beyond = np.array([Softening.beyond(face) for face in faces])

    def loss(slopes: Array) -> float:
        log_probabilities = log_softmax(logs / np.maximum(1, 1 + beyond @ slopes)[:, None], axis=1)
        return float(-log_probabilities[np.arange(len(actual)), actual].mean())

    bounds = ((0, 5), (-5, 5), (0, 1), (0, 5))
    slopes = minimize(loss, (0.1, 0.0, 0.001, 0.01), bounds=bounds, method="L-BFGS-B").x
    return Softening.model_validate(dict(zip(Softening.model_fields, np.round(slopes, 5).tolist(), strict=True)))


def _soften(softening: Softening, probabilities: Array, quality: Sequence[Quality]) -> Array:
    return np.stack([softening.soften(row, face) for row, face in zip(probabilities, quality, strict=True)])


def _crossing(values: Sequence[float], right: Array, loss: float) -> Interval | None:
    """Value at which accuracy first is lower by `loss`, interpolated; None if it never is.

    Args:
        values: of the original and of each step.
        right: (S, N) bool, whether each face is labeled correctly, in the same order.
        loss: a share, of accuracy.
    """

    def at(right: Array) -> float:
        accuracy = np.minimum.accumulate(right.mean(axis=0))
        below = np.flatnonzero(accuracy <= accuracy[0] - loss)
        if not len(below):
            return values[-1]  # at least
        place = int(below[0])
        share = float((accuracy[place - 1] - (accuracy[0] - loss)) / (accuracy[place - 1] - accuracy[place]))
        return values[place - 1] + share * (values[place] - values[place - 1])

    accuracy = right.mean(axis=1)
    return metrics.bootstrap(at, right.T) if accuracy.min() <= accuracy[0] - loss else None
