"""Release of a finished run of a face detector, if ONNX agrees with torch.

    mien detector export runs/face_fpn_tiny --tag mine [--threshold 0.8] [--default]

Writes models/artifacts/<arch>.<tag>/ with model.onnx, model.safetensors, manifest.json and card.md, evaluated on the
validation split; only `mien detector evaluate` reads the test split. Without --threshold, the score threshold for
serving is the lowest with less than one false positive per 100 faces of the validation split. --default writes the
artifact's name to models/artifacts/DEFAULT_DETECTOR.
"""

import logging
import math
from pathlib import Path
from typing import Final

import numpy as np
import torch

from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.models.detector.decode import OUTPUTS, detect_rows
from mien.models.detector.manifest import DetectorManifest
from mien.models.detector.network import FaceFPN, Released
from mien.models.manifest import ARTIFACTS_DIR, GraphFile, sha256_of, write_manifest
from mien.training.detector.card import render
from mien.training.detector.config import DetectorRecipe, shareable
from mien.training.detector.evaluate import evaluate_graph, select_threshold
from mien.training.detector.images import load_images
from mien.training.detector.train import build_detector
from mien.training.evaluate import open_graph
from mien.training.loop import checkpoint
from mien.training.loop.run_folder import parameters, read_facts, read_run, trained_commit
from mien.training.release.description import CARD_NAME
from mien.training.release.folder import new_artifact
from mien.training.release.graphs import OPSET, ExportError, export_onnx
from mien.training.release.weights import WEIGHTS_NAME, save_weights

logger = logging.getLogger("mien.training")
MAX_DIFFERENCE: Final = 1e-3  # of a score, or of a box or landmark in cells
_GRAPH: Final = "model.onnx"
_SIDES: Final = ((64, 96), (320, 256))
_LICENSE: Final = (
    "Weights: Apache-2.0, as far as the authors hold rights to them. Labels: outputs of YuNet (MIT). The images are "
    "from public repositories and belong to their owners; this artifact contains none of them."
)


def export(run: Path, tag: str, *, threshold: float | None = None, artifacts_dir: Path = ARTIFACTS_DIR) -> Path:
    """Write an artifact from a run, with the score threshold for serving, and return its folder.

    Args:
        threshold: score threshold; default: selected on the validation split.

    Raises: ExportError, RunError, RecipeError, CheckpointError, DatasetError; FileExistsError, if the artifact exists.
    """
    recipe = read_run(DetectorRecipe, run)
    final = artifacts_dir / f"{recipe.model.arch}.{tag}"
    with new_artifact(final) as staging:
        network, facts, graph = build_detector(recipe.model), read_facts(run), staging / _GRAPH
        network.load_state_dict(checkpoint.read(run / checkpoint.BEST)["weights"])
        save_weights(network.eval(), staging)
        sides = {2: 32 * torch.export.Dim("rows", min=1, max=256), 3: 32 * torch.export.Dim("columns", min=1, max=256)}
        export_onnx(
            Released(network),
            torch.zeros(2, 3, 64, 96),
            graph,
            input_name="input",
            output_names=OUTPUTS,
            dynamic_shape={0: torch.export.Dim("images", min=1, max=4096)} | sides,
        )
        images = load_images(recipe.data, "valid")
        difference = check_graph(network, graph, images.items[0].read())
        logger.info("largest difference between ONNX and torch: %.1e", difference)
        if threshold is None:
            run_graph = open_graph(graph, threads=1).run
            threshold = select_threshold(lambda image, least: detect_rows(run_graph, image, threshold=least), images)
            logger.info("score threshold: %.2f", threshold)
        metrics = evaluate_graph(graph, final.name, threshold, images, recipe.data)
        manifest = DetectorManifest(
            name=final.name,
            graph=GraphFile(file=_GRAPH, sha256=sha256_of(graph)),
            opset=OPSET,
            parameters=parameters(network),
            score_threshold=threshold,
            metrics=tuple(metric for metric in metrics[final.name] if math.isfinite(metric.estimate.value)),
            recipe=shareable(recipe),
            commit=trained_commit(facts),
            data_index_sha256=facts["data"],
            teacher=facts["teacher"],
            license=_LICENSE,
            files={},
        )
        write_atomic(staging / CARD_NAME, render(manifest, metrics))
        files = {name: sha256_of(staging / name) for name in (WEIGHTS_NAME, CARD_NAME)}
        write_manifest(staging, manifest.model_copy(update={"files": files}))
    return final


@torch.no_grad()
def check_graph(network: FaceFPN, path: Path, image: Array) -> float:
    """Largest difference of an output between ONNX and torch on an image (H, W, 3) uint8 BGR. Raises: ExportError."""
    session, released, worst = open_graph(path), Released(network).eval(), 0.0
    for height, width in _SIDES:
        pixels = np.resize(image, (height, width, 3)).transpose(2, 0, 1)[None].astype(np.float32)
        expected = released(torch.from_numpy(pixels))
        outputs = session.run(list(OUTPUTS), {"input": pixels})
        worst = max(worst, *(float(np.abs(a.numpy() - b).max()) for a, b in zip(expected, outputs, strict=True)))
    if not worst <= MAX_DIFFERENCE:
        raise ExportError(f"{path.name}: an output differs from torch by {worst:.2e}, more than {MAX_DIFFERENCE:g}")
    return worst
