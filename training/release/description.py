"""Description of a release: operating point, metrics, manifest and card."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from onnxruntime import InferenceSession

from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.data.contract.align import TEMPLATE_PX
from mien.data.quality import measure
from mien.models.manifest import Manifest, sha256_of, write_manifest
from mien.training.conditions import measure_conditions
from mien.training.evaluate import PRIORS, open_graph, run_graph, score_logits, score_split
from mien.training.faces import FaceSet
from mien.training.loop import metrics
from mien.training.release import card
from mien.training.release.operating_point import fit_operating_point

CARD_NAME: Final = "card.md"
logger = logging.getLogger("mien.training")


def describe(folder: Path, manifest: Manifest, valid: FaceSet, also: Sequence[FaceSet]) -> None:
    """Fit the operating point of the graphs in `folder`, evaluate them, and write manifest and card."""
    session = open_graph(folder / manifest.graph("fp32").file)
    logits = run_graph(session, valid.crops)
    point = fit_operating_point(logits, valid.labels)
    logger.info("temperature %.4f, tau of the prior correction %.2f", point.temperature, point.tau)
    fitted = manifest.model_copy(
        update={
            "temperature": point.temperature,
            "prior_correction": point.prior_correction,
            "abstain_threshold": point.abstain_threshold,
        }
    )
    fitted = with_conditions(fitted, session, valid, point.cross_fitted["balanced"])
    natural_and_balanced = {prior: fitted.probabilities(logits, prior) for prior in PRIORS}
    scored = score_split(valid, natural_and_balanced, point.cross_fitted)
    for faces in also:
        scored += score_logits(run_graph(session, faces.crops), fitted, faces)
    graphs = dict(fitted.graphs)
    if "int8" in graphs:
        int8 = score_logits(run_graph(open_graph(folder / graphs["int8"].file), valid.crops), fitted, valid)
        graphs["int8"] = graphs["int8"].model_copy(update={"metrics": tuple(int8)})
    finish(folder, fitted.model_copy(update={"metrics": tuple(scored), "graphs": graphs}))


def with_conditions(manifest: Manifest, session: InferenceSession, valid: FaceSet, cross_fitted: Array) -> Manifest:
    """The manifest with measured conditions, and with a threshold for probabilities that are softened by them.

    Args:
        manifest: with temperature and correction; `session` is its fp32 graph.
        cross_fitted: (N, K) balanced probabilities of the faces of the validation split.
    """
    conditions = measure_conditions(manifest, lambda crops: run_graph(session, crops), valid)
    softened = [
        conditions.softening.soften(row, measure(crop, np.array(TEMPLATE_PX)))
        for row, crop in zip(cross_fitted, valid.crops, strict=True)
    ]
    threshold = round(metrics.abstain_threshold(np.stack(softened), valid.labels), 4)
    logger.info("abstain threshold %.4f, %.4f without softening", threshold, manifest.abstain_threshold)
    return manifest.model_copy(update={"abstain_threshold": threshold, "conditions": conditions})


def measure_again(folder: Path, manifest: Manifest, valid: FaceSet) -> None:
    """Measure the conditions of an artifact again, and rewrite manifest and card."""
    session = open_graph(folder / manifest.graph("fp32").file)
    point = fit_operating_point(run_graph(session, valid.crops), valid.labels)
    finish(folder, with_conditions(manifest, session, valid, point.cross_fitted["balanced"]))


def finish(folder: Path, manifest: Manifest) -> None:
    """Write the card and the manifest."""
    path = folder / CARD_NAME
    write_atomic(path, card.render(manifest))
    write_manifest(folder, manifest.model_copy(update={"files": {**manifest.files, path.name: sha256_of(path)}}))
