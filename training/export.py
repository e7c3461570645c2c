"""Export of a finished run as an artifact for serving, in two stages: `write_graphs` and `fit`.

    mien export runs/ferplus_hybrid_tiny --tag ferplus_v1 [--default]
    mien export runs/NAME_all --tag all --calibrated-by models/artifacts/NAME
    mien export models/artifacts/NAME --refit
    mien export models/artifacts/NAME --photos samples/photos

`write_graphs` writes models/artifacts/<arch>.<tag>/ with fp32 and fp16 graphs and model.safetensors, if ONNX and torch
agree on real faces. `fit` fits temperature, prior correction, confidence threshold and agreement on the validation
split that selected the weights, measures what is served, and writes manifest.json, report.json and card.md, and
photo.onnx, the graph from a photo to its labeled faces. A run of all faces has no validation faces: --calibrated-by
takes what is fitted and measured from an artifact of the same recipe. --refit is the second stage alone. --photos
writes only photo graphs, license and card again, and needs no data set.
"""

import json
import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import jinja2
import numpy as np
from pydantic_core import to_jsonable_python

from mien.data.atomic import write_atomic
from mien.data.contract import Array, contract_id
from mien.data.readers.base import reader_of
from mien.models.manifest import (
    ARTIFACTS_DIR,
    REPORT_NAME,
    GraphFile,
    Manifest,
    read_manifest,
    read_report,
    sha256_of,
    verify_files,
    write_manifest,
)
from mien.models.network import FaceNetwork
from mien.training import metrics
from mien.training.calibration import agreement_scores, cross_fitted_agreement, fit_agreement, fit_operating_point
from mien.training.config import DataSource, Recipe, read_as, shareable
from mien.training.data import Split, read_split, read_voted
from mien.training.evaluate import open_graph, open_released, predict, run_graph, scores_of_model, softened
from mien.training.graphs import (
    PHOTO_GRAPHS,
    ExportError,
    ReleasedNetwork,
    canvases,
    check_fp16,
    check_fp32,
    photos_in,
    tinted,
    write_graph,
    write_photo_graphs,
)
from mien.training.metrics import interval, markdown_table, percent, scores_table
from mien.training.run import RECIPE, read_run_info
from mien.training.weights import WEIGHTS_NAME, load_trained, save_weights

logger = logging.getLogger("mien.training")

CARD_NAME: Final = "card.md"
_GRAPHS: Final = {"fp32": "model.onnx", "fp16": "model.fp16.onnx"}


def export(
    run: Path,
    tag: str,
    *,
    arch: str | None = None,
    artifacts_dir: Path = ARTIFACTS_DIR,
    tau: float | None = None,
    calibrated_by: Path | None = None,
) -> Path:
    """Write an artifact from a run, and return its folder.

    Args:
        tag: last part of the name; distinguishes releases of an architecture.
        arch: first part of the name, from the recipe by default.
        tau: weight of the correction for rare classes, instead of the fitted one.
        calibrated_by: artifact of the same recipe, for a run without validation faces: what would be fitted on these.
    Raises: ExportError; RunError; DatasetError; FileExistsError, if the artifact exists.
    """
    for option, part in (("--tag", tag), ("--arch", arch)):
        if part is not None and not re.fullmatch(r"\w[\w-]*", part):
            raise ExportError(f"{option} {part!r}: expected letters, digits, _ and -, as it names a folder")
    recipe, run_info = read_as(Recipe, run / RECIPE), read_run_info(run)
    if calibrated_by is None and recipe.data.valid is None:
        raise ExportError(
            f"{run}: trained on all faces, so none are left for temperature, correction and threshold. Give "
            "--calibrated-by ARTIFACT, of the same recipe trained without --all"
        )
    if calibrated_by is not None and recipe.data.valid is not None:
        raise ExportError(f"--calibrated-by is for a run without validation faces; {run} has some")
    network, head, labels = load_trained(run)
    source = recipe.data.valid or recipe.data.train[-1]  # `mien train --all` puts its faces last.
    record = {"head": head, "recipe": shareable(recipe), "data": run_info["data"]}
    record |= {name: run_info[name] for name in ("learned_from", "weights_from", "weight_terms")}
    final = artifacts_dir / f"{arch or recipe.model.arch or recipe.model.name}.{tag}"
    if final.exists():
        raise FileExistsError(f"{final} exists, and artifacts are never overwritten: choose another --tag")
    artifacts_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=artifacts_dir) as folder:
        staging = Path(folder) / final.name
        staging.mkdir()
        valid = _read_unchanged(source, record["data"], labels)
        manifest = write_graphs(network, record, staging, valid, name=final.name, commit=run_info["commit"])
        if calibrated_by is None:
            manifest, report = fit(staging, manifest, record, valid, read_voted(source, valid.classes), tau=tau)
        else:
            manifest, report = _calibrated_by(calibrated_by, manifest, record)
        finish(staging, manifest, report, canvases(valid.crops))
        staging.rename(final)
    return final


def _calibrated_by(folder: Path, manifest: Manifest, report: dict[str, Any]) -> tuple[Manifest, dict[str, Any]]:
    """Manifest and report with what was fitted and measured for another artifact. Raises: ExportError."""
    other, measured = read_manifest(folder), read_report(folder)
    if other.labels != manifest.labels:
        raise ExportError(f"--calibrated-by {folder}: has the classes {', '.join(other.labels)}")
    before, here = ({**of["recipe"], "name": "", "data": {}, "select": ""} for of in (measured, report))
    if changed := [key for key, value in here.items() if before.get(key) != value]:
        raise ExportError(f"--calibrated-by {folder}: trained with another {', '.join(changed)}, not the same recipe")
    fitted = ("temperature", "prior_correction", "confidence_threshold", "agreement")
    changes = {name: getattr(other, name) for name in fitted}
    scores = {"fp32": measured["scores"]["fp32"]}
    about = {"scores": scores, "agreement": measured["agreement"], "calibrated_by": other.name}
    return manifest.model_copy(update=changes), report | about


def _read_unchanged(source: DataSource, trained_with: Mapping[str, str], labels: tuple[str, ...]) -> Split:
    """Read the validation split. Raises: ExportError, if it is not the one of the training; DatasetError."""
    if source.fold is not None:
        raise ExportError(
            f"{source.kind} {source.split}: the run is a fold of a cross-validation. Release the recipe itself."
        )
    faces = read_split(source, classes=labels)
    if faces.index_sha256 not in trained_with.values():
        problem = faces.changed_since(trained_with) or f"{source.split} is not in the record of the training."
        raise ExportError(f"{source.resolved_root()}: {problem} Restore the data, or train again.")
    return faces


def write_graphs(
    network: FaceNetwork, record: dict[str, Any], folder: Path, valid: Split, *, name: str, commit: str
) -> Manifest:
    """Write the graphs of a network and its weights, and compare ONNX with torch on real and tinted crops.

    Args:
        record: of the training; it becomes part of the report.
    Returns: the manifest, without what is fitted on validation, and without the license.
    Raises: ExportError, if they differ.
    """
    released = ReleasedNetwork(network, record["head"])
    save_weights(network, folder)
    both = np.concatenate([valid.crops, tinted(valid.crops[:512])])
    expected, graph = predict(network, both, head=record["head"]), folder / _GRAPHS["fp32"]
    write_graph(released, graph)
    session = open_graph(graph)
    fp32, relevance = run_graph(session, both), session.get_outputs()[1:]
    logger.info("fp32 graph against torch: largest difference of a probability %.1e", check_fp32(expected, fp32))
    released.backbone.half()
    write_graph(released, folder / _GRAPHS["fp16"])
    same = check_fp16(fp32, run_graph(open_graph(folder / _GRAPHS["fp16"]), both))
    logger.info("fp16 graph: same label as fp32 on %.2f %% of the faces", 100 * same)
    return Manifest(
        name=name,
        labels=valid.classes,
        contract_id=contract_id(),
        explain=tuple(relevance[0].shape[1:]) if relevance else None,
        graphs={
            precision: GraphFile(file=file, sha256=sha256_of(folder / file)) for precision, file in _GRAPHS.items()
        },
        parameters=sum(weight.numel() for weight in network.parameters()),
        temperature=1.0,
        prior_correction=(0.0,) * len(valid.classes),
        confidence_threshold=0.0,
        commit=commit,
        license="",
        files={WEIGHTS_NAME: sha256_of(folder / WEIGHTS_NAME)},
    )


def license_of(learned_from: Iterable[str], weight_terms: Mapping[str, str]) -> str:
    """License of the weights, with the terms of their data sets (`kind/split`) and of third-party weights."""
    names = dict.fromkeys(name.partition("/")[0] for name in learned_from)
    sets = "; ".join(f"{reader_of(kind).title}: {reader_of(kind).terms}" for kind in names)
    foreign = "".join(f" Initialized from {name}: {terms}." for name, terms in weight_terms.items())
    return f"Weights: Apache-2.0, as far as the authors hold rights. Trained on {sets}.{foreign}"


def refit(folder: Path, *, tau: float | None = None, photos: Path | None = None) -> None:
    """Fit and measure the graphs of an artifact again, and write photo graphs, license and card again.

    Args:
        tau: weight of the correction, instead of the fitted one.
        photos: folder of photos to compare the photo graphs on; then nothing is fitted, which needs no data set.
    Raises: ArtifactError; ExportError; DatasetError; DecodeError.
    """
    manifest, report = read_manifest(folder), read_report(folder)
    # except what is written here: a kill before the manifest is repaired by the same command
    rewritten = {CARD_NAME, REPORT_NAME, *PHOTO_GRAPHS.values()}
    verify_files(folder, {name: sha256 for name, sha256 in manifest.hashes().items() if name not in rewritten})
    if photos:
        finish(folder, manifest, report, photos_in(photos))
        return
    if (recorded_source := report["recipe"]["data"]["valid"]) is None:
        raise ExportError(f"trained on all faces, and calibrated by {report['calibrated_by']}: nothing to fit it on")
    source = DataSource.model_validate(recorded_source)
    valid = _read_unchanged(source, report["data"], manifest.labels)
    manifest, report = fit(folder, manifest, report, valid, read_voted(source, manifest.labels), tau=tau)
    finish(folder, manifest, report, canvases(valid.crops))


def fit(
    folder: Path,
    manifest: Manifest,
    report: Mapping[str, Any],
    valid: Split,
    voted: Split | None,
    *,
    tau: float | None = None,
) -> tuple[Manifest, dict[str, Any]]:
    """Fit the operating point and the agreement of the graphs in `folder`, and measure them.

    Args:
        valid: the validation split that selected the weights.
        voted: its faces with votes, if it has some.
        tau: weight of the correction, instead of the fitted one.
    Returns: manifest and report with the results.
    """
    model = open_released(folder, manifest)
    logits = model.logits(valid.crops)
    point = fit_operating_point(logits, valid.labels, tau)
    logger.info("temperature %.4f, tau of the prior correction %.2f", point.temperature, point.tau)
    calibrated = {prior: softened(rows, valid) for prior, rows in point.cross_fitted.items()}
    threshold = round(metrics.confidence_threshold(calibrated["balanced"], valid.labels), 4)
    logger.info("confidence threshold %.4f", threshold)
    if threshold == 1:
        logger.warning(
            "no confidence threshold keeps labels that are 95 % right: all labels will be uncertain. More faces for "
            "validation, or a better model, may have one."
        )
    changes = {"temperature": point.temperature, "prior_correction": point.prior_correction}
    fitted = manifest.model_copy(update={**changes, "confidence_threshold": threshold, "agreement": None})
    measured = dict(report) | {"agreement": None}
    if voted is not None:
        of_voted, votes = model.logits(voted.crops), np.asarray(voted.votes)
        log_natural = np.log(np.maximum(fitted.probabilities(of_voted, "natural"), 1e-12))
        served = fitted.probabilities(of_voted, "balanced").argmax(axis=1)
        fitted = fitted.model_copy(update={"agreement": fit_agreement(log_natural, votes)})
        measured["agreement"] = agreement_scores(cross_fitted_agreement(log_natural, votes), voted, served)
    measured["scores"] = {"fp32": scores_of_model(replace(model, manifest=fitted), valid, logits, calibrated)}
    if "int8" in fitted.graphs:
        int8 = open_released(folder, fitted, "int8")
        measured["scores"]["int8"] = scores_of_model(int8, valid, int8.logits(valid.crops))
    return fitted, measured


def finish(folder: Path, manifest: Manifest, report: Mapping[str, Any], photos: Iterable[Array]) -> None:
    """Write photo graphs, compared on photos, report, card and manifest. Raises: ExportError; ArtifactError."""
    # The terms are those that the readers state today.
    license_ = license_of(report["learned_from"], report["weight_terms"])
    manifest = write_photo_graphs(folder, manifest, photos).model_copy(update={"license": license_})
    report = to_jsonable_python(report)
    write_atomic(folder / REPORT_NAME, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    write_atomic(folder / CARD_NAME, card(manifest, report))
    written = {name: sha256_of(folder / name) for name in (REPORT_NAME, CARD_NAME)}
    write_manifest(folder, manifest.model_copy(update={"files": {**manifest.files, **written}}))


def card(manifest: Manifest, report: Mapping[str, Any]) -> str:
    """Model card as Markdown: description, intended use, training data, metrics and limitations."""
    by_precision, valid = report["scores"], report["recipe"]["data"]["valid"] or {}
    first = by_precision["fp32"][0]
    kind, split = first["data"], first["split"]
    names = dict.fromkeys(name.split("/")[0] for name in report["learned_from"])
    limits = [reader_of(name).limits for name in names]
    counts = np.array(first["confusion"])
    if (wrong := counts * (1 - np.eye(len(counts), dtype=int))).any():
        actual, predicted = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
        share = percent(wrong[actual, predicted] / counts[actual].sum(), 0)
        confusion = f"{manifest.labels[actual]} labeled {manifest.labels[predicted]}: {share} %"
        limits.append(f"The most frequent confusion is {confusion} of the faces on {kind} {split}, {first['prior']}.")

    options = "".join(
        f" --option {shlex.quote(f'{name}={_text(of)}')}" for name, of in valid.get("options", {}).items()
    )
    tables = {
        precision: markdown_table(*scores_table([f"{of['prior']}, {of['faces']:,} faces" for of in scores], scores))
        for precision, scores in by_precision.items()
    }
    template = jinja2.Template(
        Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text: str = template.render(
        m=manifest,
        report=report,
        tables=tables,
        data=f"{kind}, {split} split",
        command=f"mien evaluate DIR --data {kind}=ROOT --split {split}{options}",
        limitations=" ".join(limits),
        interval=interval,
        percent=percent,
    )
    return text


def _text(option: Any) -> str:
    """Value of a reader's option as the command line takes it."""
    parts = [f"{key}={of}" for key, of in option.items()] if isinstance(option, dict) else option
    return ",".join(map(str, parts)) if isinstance(parts, list) else str(parts)
