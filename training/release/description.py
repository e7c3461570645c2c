"""Description of a release: operating point, metrics, manifest and card."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from mien.data.atomic import write_atomic
from mien.models.manifest import Manifest, sha256_of, write_manifest
from mien.training.conditions import measure_conditions
from mien.training.evaluate import open_graph, run_graph, score_logits
from mien.training.faces import Split, VotedSet
from mien.training.release import card
from mien.training.release.agreement import measure_agreement
from mien.training.release.operating_point import cross_fit_temperature, fit_operating_point

CARD_NAME: Final = "card.md"
logger = logging.getLogger("mien.training")


def describe(folder: Path, manifest: Manifest, valid: Split, voted: VotedSet | None, also: Sequence[Split]) -> None:
    """Fit the operating point of the graphs in `folder`, evaluate them, and write manifest and card.

    Args:
        valid: the validation split that selected the weights.
        voted: its faces with votes, if it has some.
        also: further splits to evaluate.
    """
    session = open_graph(folder / manifest.graph("fp32").file)
    logits = run_graph(session, valid.crops)
    point = fit_operating_point(logits, valid.labels)
    logger.info("temperature %.4f, tau of the prior correction %.2f", point.temperature, point.tau)
    fitted = manifest.model_copy(update={"temperature": point.temperature, "prior_correction": point.prior_correction})
    fitted = measure_conditions(fitted, partial(run_graph, session), valid, point.cross_fitted["balanced"])
    logger.info("confidence threshold %.4f", fitted.confidence_threshold)
    if voted is not None:
        fitted = measure_agreement(fitted, partial(run_graph, session), voted)
    scored = score_logits(logits, fitted, valid, point.cross_fitted)
    for faces in also:
        scored += score_logits(run_graph(session, faces.crops), fitted, faces)
    graphs = dict(fitted.graphs)
    if "int8" in graphs:
        int8 = score_logits(run_graph(open_graph(folder / graphs["int8"].file), valid.crops), fitted, valid)
        graphs["int8"] = graphs["int8"].model_copy(update={"metrics": tuple(int8)})
    finish(folder, fitted.model_copy(update={"metrics": tuple(scored), "graphs": graphs}))


def fit_agreement_again(folder: Path, manifest: Manifest, voted: VotedSet) -> None:
    """Fit the agreement of an artifact to votes, and rewrite manifest and card."""
    session = open_graph(folder / manifest.graph("fp32").file)
    finish(folder, measure_agreement(manifest, partial(run_graph, session), voted))


def measure_again(folder: Path, manifest: Manifest, valid: Split, voted: VotedSet | None) -> None:
    """Measure the conditions of an artifact again, fit its threshold to the correction it serves, and rewrite them.

    The agreement depends on the conditions: it is fitted again, if there are votes.
    """
    session = open_graph(folder / manifest.graph("fp32").file)
    logits = run_graph(session, valid.crops)
    probabilities = cross_fit_temperature(logits, valid.labels, manifest.prior_correction)
    fitted = measure_conditions(manifest, partial(run_graph, session), valid, probabilities)
    finish(folder, fitted if voted is None else measure_agreement(fitted, partial(run_graph, session), voted))


def finish(folder: Path, manifest: Manifest) -> None:
    """Write the card and the manifest."""
    path = folder / CARD_NAME
    write_atomic(path, card.render(manifest))
    write_manifest(folder, manifest.model_copy(update={"files": {**manifest.files, path.name: sha256_of(path)}}))
