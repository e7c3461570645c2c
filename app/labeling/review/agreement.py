"""Agreement of reviewers with each other and with the model, on a sample of faces that all of them label unseen.

mien review out --sample 200 --reviewer anna
"""

import hashlib
import heapq
import importlib.util
import itertools
import json
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np

from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.files import REVIEWS, LabelingError, disk_errors
from mien.app.labeling.pages import load_page
from mien.app.labeling.records import Result
from mien.app.labeling.review.corrections import MIN_IOU, Correction, Corrections, decision
from mien.app.labeling.view import View, open_view
from mien.app.wording import counted
from mien.data.atomic import write_atomic

SAMPLE: Final = "sample.json"
MODEL: Final = "model"
MAJORITY: Final = "majority of reviewers"
_NAME: Final = re.compile(r"[\w.-]{1,40}")
_RESAMPLES: Final = 1_000
_TEMPLATE: Final = Path(__file__).with_name("agreement.html")


@dataclass(frozen=True, slots=True)
class Kappa:
    """Agreement of two raters (Cohen) or of all reviewers (Fleiss), with its 95 % interval; None if undefined.

    Attributes:
        faces: number of faces that these raters labeled; share: that got the same label from all of them.
    """

    raters: tuple[str, ...]
    faces: int
    share: float
    kappa: float | None
    low: float | None
    high: float | None


def check_reviewer(name: str) -> None:
    """Check a reviewer's name, which is the name of a file. Raises: LabelingError."""
    if name == MODEL:
        raise LabelingError(f"reviewer {name!r}: this name stands for the model. Choose another.")
    if _NAME.fullmatch(name) is None:
        raise LabelingError(f"reviewer {name!r}: expected a name of up to 40 letters, digits, dots, - and _.")


def draw_sample(out: Path, count: int) -> list[Correction]:
    """Faces of the sample, drawn and stored by the first call. Raises: LabelingError, for another number.

    The sample is stratified: each expression has the share that it has among the labels, and at least one face. Its
    faces are those with the smallest hashes, so the draw is repeatable. Copies of a photo count once.
    """
    path = out / REVIEWS / SAMPLE
    if faces := _read_sample(path):
        if len(faces) != count:
            raise LabelingError(
                f"{path} has a sample of {len(faces)} faces: add --sample {len(faces)}, or remove the folder {REVIEWS} "
                "to begin another one."
            )
        return faces
    with closing(open_view(out, filtered=False)) as view:
        counts: dict[str, int] = {}
        smallest: dict[str, list[Correction]] = {}
        for label in view.labels():
            number = itertools.count()
            candidates = (face for face, _ in zip(_faces(view, label), number, strict=False))
            smallest[label] = heapq.nsmallest(count, candidates, key=_digest)
            counts[label] = next(number)
    if count < len(counts):
        raise LabelingError(f"--sample {count}: {out} has {len(counts)} expressions, and each needs one face.")
    if sum(counts.values()) < count:
        raise LabelingError(f"--sample {count}: {out} has {counted(sum(counts.values()), 'different face')}.")
    chosen = (smallest[label][:share] for label, share in _strata(counts, count).items())
    drawn = sorted(itertools.chain(*chosen), key=_digest)
    with disk_errors(out):
        write_atomic(path, json.dumps({"faces": [asdict(face) for face in drawn]}, ensure_ascii=False))
    return drawn


def find(view: View, drawn: Correction) -> tuple[Result, LabeledFace] | None:
    """A face of the sample, with its image, in the last run; None if the run does not have it."""
    image = view.image_of(drawn.file_sha256, drawn.frame)
    face = max(image.faces, key=drawn.overlap, default=None) if image else None
    return None if image is None or face is None or drawn.overlap(face) < MIN_IOU else (image, face)


def _read_sample(path: Path) -> list[Correction]:
    if not path.exists():
        return []
    try:
        return [Correction(**values) for values in json.loads(path.read_text(encoding="utf-8"))["faces"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LabelingError(f"{path} is damaged ({error}). Restore it: all reviewers label its faces.") from error


def _strata(counts: dict[str, int], total: int) -> dict[str, int]:
    """Faces per label in proportion to `counts`, at least one each. Source: Sainte-Laguë 1910 (Webster's method)."""
    strata = dict.fromkeys(counts, 1)
    for _ in range(total - len(strata)):
        strata[max(counts, key=lambda label: counts[label] / (strata[label] + 0.5))] += 1
    return strata


def _faces(view: View, label: str) -> Iterator[Correction]:
    for image, face in view.least_confident(label):
        if image.input.is_frame or view.first_with_hash(image.sha256 or "") == image.input.name:  # no copy
            yield decision(image, face, label)


def _digest(face: Correction) -> str:
    return hashlib.sha256(f"{face.file_sha256} {face.frame} {face.box}".encode()).hexdigest()


def measure(out: Path) -> list[Kappa]:
    """Cohen's kappa of each pair of raters, and Fleiss' kappa of all reviewers if there are several.

    The model is that of the last run, which may have been another one when the sample was drawn.

    Raises: LabelingError, if there is no sample, or if statsmodels is not installed.
    """
    faces = _read_sample(out / REVIEWS / SAMPLE)
    if not faces:
        raise LabelingError(f"{out} has no sample: mien review {shlex.quote(str(out))} --sample 200 --reviewer NAME")
    if importlib.util.find_spec("statsmodels") is None:
        raise LabelingError("agreement: statsmodels is not installed. Run `pip install statsmodels`.")
    reviewers = {path.stem: Corrections(out, path.stem) for path in sorted((out / REVIEWS).glob("*.jsonl"))}
    ratings = {name: [corrections.label_of(face) for face in faces] for name, corrections in reviewers.items()}
    groups: list[tuple[str, ...]] = list(itertools.combinations([*ratings, MODEL], 2))
    if len(ratings) > 1:
        groups.append((MAJORITY, MODEL))
    if len(ratings) > 2:  # the kappa of Fleiss
        groups.append(tuple(ratings))
    ratings[MAJORITY] = [_majority(labels) for labels in zip(*ratings.values(), strict=True)]
    with closing(open_view(out, filtered=False)) as view:
        ratings[MODEL] = [match[1].label if (match := find(view, face)) else None for face in faces]
    with warnings.catch_warnings():  # a resample with one label has no kappa, and raters without chance no variance
        warnings.simplefilter("ignore", RuntimeWarning)
        return [_kappa(group, [ratings[name] for name in group]) for group in groups]


def _majority(labels: tuple[str | None, ...]) -> str | None:
    given = [label for label in labels if label]
    if not given:
        return None
    label, votes = Counter(given).most_common(1)[0]
    return label if votes > len(given) / 2 else None


def _kappa(raters: tuple[str, ...], ratings: list[list[str | None]]) -> Kappa:
    from scipy.stats import bootstrap
    from statsmodels.stats.inter_rater import aggregate_raters, cohens_kappa, fleiss_kappa, to_table

    common = np.array([labels for labels in zip(*ratings, strict=True) if all(labels)], np.str_)  # (faces, raters)
    share = float((common == common[:, :1]).all(axis=1).mean()) if len(common) else 0.0
    if len(common) < 2 or len(np.unique(common)) < 2:
        return Kappa(raters, len(common), share, None, None, None)
    if len(raters) == 2:
        result = cohens_kappa(to_table(common)[0])
        return Kappa(raters, len(common), share, *map(_finite, (result.kappa, result.kappa_low, result.kappa_upp)))
    counts = aggregate_raters(common)[0]
    interval = bootstrap(
        (np.arange(len(counts)),),
        lambda rows: fleiss_kappa(counts[rows]),
        vectorized=False,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Kappa(raters, len(common), share, *map(_finite, (fleiss_kappa(counts), interval.low, interval.high)))


def _finite(value: Any) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def agreement_page(out: Path) -> str:
    """The page of agreement. Raises: LabelingError."""
    rows = ""
    for kappa in measure(out):
        words, kind = (" and ".join(kappa.raters), "Cohen") if len(kappa.raters) == 2 else ("all reviewers", "Fleiss")
        interval = "" if kappa.low is None else f"{kappa.low:.2f} to {kappa.high:.2f}"
        value = "-" if kappa.kappa is None else f"{kappa.kappa:.2f}"
        rows += f"<tr><td>{escape(words)}<td>{kind}<td>{kappa.faces}<td>{kappa.share:.0%}<td>{value}<td>{interval}"
    return Template(load_page(_TEMPLATE)).substitute(rows=rows, out=escape(out.name))
