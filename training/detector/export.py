"""Release of a finished run of a face detector, if ONNX agrees with torch.

    mien detector export runs/face_fpn_micro --tag mine [--threshold 0.8] [--default]

Writes models/artifacts/<arch>.<tag>/ with model.onnx, model.safetensors, manifest.json and card.md, evaluated on the
validation split; only `mien detector evaluate` reads the test split. Without --threshold, the score threshold for
serving is the lowest with less than one false positive per 100 faces of the validation split. --default writes the
artifact's name to models/artifacts/DEFAULT_DETECTOR.
"""

import logging
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper

from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.models.detector.decode import KINDS, OUTPUTS, SCORE_THRESHOLD, STRIDES, detect_rows
from mien.models.detector.manifest import DetectorManifest, DetectorMetric
from mien.models.detector.network import FaceFPN, Released
from mien.models.manifest import ARTIFACTS_DIR, GraphFile, sha256_of, write_manifest
from mien.training import checkpoint
from mien.training.config import shareable
from mien.training.detector.config import DetectorRecipe
from mien.training.detector.evaluate import evaluate_graph, metric_rows, select_threshold
from mien.training.detector.images import load_images
from mien.training.detector.train import build_detector
from mien.training.evaluate import open_graph
from mien.training.release.export import CARD_NAME, new_artifact
from mien.training.release.graphs import OPSET, ExportError, export_onnx
from mien.training.run_folder import parameters, read_facts, read_run, trained_commit
from mien.training.weights import WEIGHTS_NAME, save_weights
from mien.training.wording import markdown_table, markdown_template

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
        skip_empty_grids(graph)
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
            metrics=tuple(metric for metric in metrics[final.name] if metric.estimate is not None),
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


def skip_empty_grids(path: Path) -> None:
    """Let a graph compute boxes and landmarks of a grid only if a cell reaches the input `score_threshold`.

    They take a quarter of the time, most of it in the finest grid, and a photo rarely has faces in every grid. By
    default, the input is 0, and all are computed.
    """
    options = onnxruntime.SessionOptions()  # BatchNorm would not be fused in branches
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = onnx.load(str(path))
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info(SCORE_THRESHOLD, onnx.TensorProto.FLOAT, []))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), SCORE_THRESHOLD))
    names = {stride: [f"{kind}_{stride}" for kind in KINDS] for stride in STRIDES}
    own = {stride: _only_for(names[stride][2:], graph) for stride in STRIDES}
    for stride, (cls, obj, *parts) in names.items():
        then, none = _moved_to_branch(own[stride], graph, parts), [f"{part}_none" for part in parts]
        # scores in the right shape, of cells that are not faces
        copies = [helper.make_node("Concat", [cls] * n, [name], axis=2) for n, name in zip((4, 10), none, strict=True)]
        empty = helper.make_graph(copies, f"no_faces_{stride}", [], [_value(name) for name in none])
        graph.node.extend(
            [
                helper.make_node("Mul", [cls, obj], [f"product_{stride}"]),
                helper.make_node("ReduceMax", [f"product_{stride}"], [f"most_{stride}"], keepdims=0),
                helper.make_node("Sqrt", [f"most_{stride}"], [f"best_{stride}"]),
                helper.make_node("GreaterOrEqual", [f"best_{stride}", SCORE_THRESHOLD], [f"has_faces_{stride}"]),
                helper.make_node("If", [f"has_faces_{stride}"], parts, then_branch=then, else_branch=empty),
            ]
        )
    used = {value for node in graph.node for value in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)
    for domain in [imported for imported in model.opset_import if imported.domain]:  # of the optimizer, not used
        model.opset_import.remove(domain)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def _only_for(parts: list[str], graph: onnx.GraphProto) -> set[str]:
    """All values that these outputs, and no others, are computed from; and themselves."""
    producers = {name: node for node in graph.node for name in node.output}

    def needed(names: list[str]) -> set[str]:
        values, waiting = set[str](), [*names]
        while waiting:
            name = waiting.pop()
            if name not in values:
                values.add(name)
                waiting += [*producers[name].input, *producers[name].output] if name in producers else []
        return values

    return needed(parts) - needed([value.name for value in graph.output if value.name not in parts])


def _moved_to_branch(values: set[str], graph: onnx.GraphProto, parts: list[str]) -> onnx.GraphProto:
    """Move the nodes of some values, two of them outputs, to a graph of its own, with a copy of their weights.

    ONNX Runtime does not optimize a convolution whose weights are in the graph around its own.
    """
    nodes, name = [node for node in graph.node if node.output[0] in values], "_".join(parts)
    used = {value for node in nodes for value in node.input}
    renamed = {tensor.name: f"{tensor.name}_{name}" for tensor in graph.initializer if tensor.name in used}
    renamed |= {part: f"{part}_found" for part in parts}
    branch = helper.make_graph(nodes, name, [], [_value(renamed[part]) for part in parts])
    for tensor in graph.initializer:
        if tensor.name in renamed:
            branch.initializer.add().CopyFrom(tensor)
            branch.initializer[-1].name = renamed[tensor.name]
    for node in branch.node:
        node.input[:] = [renamed.get(value, value) for value in node.input]
        node.output[:] = [renamed.get(value, value) for value in node.output]
    for node in nodes:
        graph.node.remove(node)
    return branch


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


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


def render(manifest: DetectorManifest, metrics: dict[str, list[DetectorMetric]]) -> str:
    """Markdown text of the card."""
    table = markdown_table(("on held-out images", "faces", *metrics), metric_rows(metrics))
    recipe = DetectorRecipe.model_validate(manifest.recipe)
    return markdown_template(Path(__file__).with_name("card.md.jinja")).render(m=manifest, recipe=recipe, table=table)
