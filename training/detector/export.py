"""Release of a finished run of a face detector, refused where ONNX does not find what torch finds.

    python -m training.detector.export runs/face_fpn_tiny --tag yunet_v1 [--threshold 0.8] [--default]

Writes models/artifacts/<arch>.<tag>/ with model.onnx, model.safetensors, manifest.json and card.md, scored on the
held-out pictures; --default makes it the detector that models/artifacts/DEFAULT_DETECTOR names.
"""

import argparse
import logging
import math
import shutil
import sys
from pathlib import Path
from typing import Final

import yaml
from rich.logging import RichHandler

from data.atomic import write_atomic
from data.errors import MienError
from models.detector.manifest import (
    POINTER,
    DetectorManifest,
    DetectorMetric,
    load_detector,
    write_detector_manifest,
)
from models.detector.network import FaceFPN
from models.manifest import ARTIFACTS_DIR, GraphFile, Interval, sha256_of
from training.detector.card import render
from training.detector.config import DetectorRecipe, shareable
from training.detector.evaluate import TEACHER_THRESHOLD, Figure, evaluate_artifact
from training.detector.graph import check_graph, write_graph
from training.detector.pictures import load_pictures
from training.detector.train import build_detector
from training.loop import checkpoint
from training.loop.run_folder import RECIPE_NAME, RunError, parameters, read_facts
from training.release.graphs import OPSET
from training.release.weights import WEIGHTS_NAME, save_weights

logger = logging.getLogger("training")
_GRAPH: Final = "model.onnx"
_LICENSE: Final = (
    "Weights: Apache-2.0 as far as those who trained them hold rights. Labels: the outputs of YuNet (MIT). The "
    "pictures are from public repositories and belong to their owners; none is part of this artifact."
)


def read_detector_run(folder: Path) -> tuple[DetectorRecipe, FaceFPN]:
    """Recipe and averaged weights of a finished run. Raises: RunError, CheckpointError."""
    try:
        values = yaml.safe_load((folder / RECIPE_NAME).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{folder}: no run here, cannot read {RECIPE_NAME} ({error.strerror})") from error
    recipe = DetectorRecipe.model_validate(values)
    network = build_detector(recipe.model)
    network.load_state_dict(checkpoint.read(folder / checkpoint.BEST)["weights"])
    return recipe, network.eval()


def export(run: Path, tag: str, *, threshold: float = TEACHER_THRESHOLD, artifacts_dir: Path = ARTIFACTS_DIR) -> Path:
    """Write an artifact from a run, with the least score of a face, and return its folder.

    Raises: ExportError; RunError; CheckpointError; DatasetError; FileExistsError, for an artifact that exists already.
    """
    recipe, _ = read_detector_run(run)
    name = f"{recipe.model.arch}.{tag}"
    final = artifacts_dir / name
    if final.exists():
        raise FileExistsError(f"{final} exists: a released artifact is not overwritten; choose another --tag")
    staging = artifacts_dir / f".{name}.part"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        write_detector_manifest(staging, _first_manifest(staging, name, run, threshold))
        describe(staging, recipe)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def _first_manifest(folder: Path, name: str, run: Path, threshold: float) -> DetectorManifest:
    """Write graph and weights; everything but the metrics."""
    recipe, network = read_detector_run(run)
    facts = read_facts(run)
    save_weights(network, folder)
    write_graph(network, folder / _GRAPH)
    picture = load_pictures(recipe.data, "valid").items[0].read()
    logger.info("onnx against torch: largest difference %.1e", check_graph(network, folder / _GRAPH, picture))
    return DetectorManifest(
        name=name,
        graph=GraphFile(file=_GRAPH, sha256=sha256_of(folder / _GRAPH)),
        opset=OPSET,
        parameters=parameters(network),
        score_threshold=threshold,
        metrics=(),
        recipe=shareable(recipe),
        commit=[facts, *facts.get("resumed", [])][-1]["commit"],
        data_index_sha256=facts["data"],
        teacher=facts["teacher"],
        license=_LICENSE,
        files={WEIGHTS_NAME: sha256_of(folder / WEIGHTS_NAME)},
    )


def describe(folder: Path, recipe: DetectorRecipe) -> None:
    """Score the graph of an artifact and write the figures into its manifest and card."""
    manifest, figures = evaluate_artifact(folder, recipe.data)
    measured = [one for one in figures[manifest.name] if math.isfinite(one.estimate.value)]
    manifest = manifest.model_copy(update={"metrics": tuple(map(_metric, measured))})
    card = render(manifest, figures)
    write_atomic(folder / "card.md", card)
    files = manifest.files | {"card.md": sha256_of(folder / "card.md")}
    write_detector_manifest(folder, manifest.model_copy(update={"files": files}))
    load_detector(folder)


def _metric(figure: Figure) -> DetectorMetric:
    one = figure.estimate
    return DetectorMetric(
        name=figure.name, faces=figure.faces, estimate=Interval(value=one.value, low=one.low, high=one.high)
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.detector.export", description="Release a face detector.")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--tag", required=True, help="distinguishes releases, e.g. yunet_v1")
    parser.add_argument("--threshold", type=float, default=TEACHER_THRESHOLD, help="least score of a face")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS_DIR, help="where to write")
    parser.add_argument("--default", action="store_true", help="make it the detector that serving loads")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(message)s", handlers=[RichHandler(show_path=False)])
    logger.setLevel(logging.INFO)
    try:
        folder = export(options.run, options.tag, threshold=options.threshold, artifacts_dir=options.artifacts)
    except (MienError, FileExistsError) as error:
        logger.error("%s", error)
        return 1
    if options.default:
        write_atomic(options.artifacts / POINTER, folder.name + "\n")
    logger.info("wrote %s", folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
