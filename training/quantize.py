"""Quantization of an artifact to int8 for CPUs, with a comparison to fp32.

    mien quantize models/artifacts/NAME --data ferplus=path/to/ferplus

Static quantization: the ranges of activations are measured on train crops, and the served probabilities of both graphs
are compared on validation. The int8 graph becomes part of the artifact if it gives nearly all faces the same label and
the labels the same likelihood. Serving decides whether to use it (docs/decisions/0006-int8-on-cpus.md).
"""

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx.utils import Extractor
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from mien.data.contract import Array
from mien.data.readers.base import open_reader
from mien.models.manifest import CROPS, LOGITS, GraphFile, load_artifact, read_report, sha256_of
from mien.training.config import DataSource
from mien.training.data import read_split
from mien.training.evaluate import open_released, scores_of_model
from mien.training.export import finish
from mien.training.graphs import ExportError, canvases
from mien.training.metrics import percent, print_table, scores_table

GRAPH_NAME: Final = "model.int8.onnx"
CALIBRATION_FACES: Final = 512
MIN_SAME: Final = 0.97  # share of faces with the label of fp32
MAX_NLL_RISE: Final = 0.01  # rise of the mean negative log likelihood of all faces, nats
_INPUT_CHANNELS: Final = 3


def _drawn_crops(source: DataSource) -> Array:
    """Random labeled crops, (N, 112, 112, 3) uint8 RGB. Raises: DatasetError."""
    reader = open_reader(source.kind, source.resolved_root(), **source.options)
    samples = [sample for sample in reader.samples(source.split) if sample.label in reader.labels]
    chosen = np.random.default_rng(0).choice(len(samples), min(CALIBRATION_FACES, len(samples)), replace=False)
    return np.stack([reader.crop(samples[int(index)]) for index in chosen])


class _Crops(CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, crops: Array) -> None:
        self._batches = iter(np.split(crops, range(64, len(crops), 64)))

    def get_next(self) -> dict[str, Array] | None:
        batch = next(self._batches, None)
        return None if batch is None else {CROPS: batch}


def quantize(source: Path, target: Path, crops: Array) -> None:
    """Quantize an fp32 graph, with the ranges of activations of crops (N, 112, 112, 3) uint8 RGB.

    Multiplications with weights and convolutions on which the logits depend become int8, except those of the input
    and depthwise ones: they have few channels, take little time, and their error affects all other layers. Attention
    products, norms, the head and the rollout stay in fp32. Raises: ExportError, without such nodes.
    """
    model = onnx.load(source)
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    needed = Extractor(model).extract_model([CROPS], [LOGITS]).graph.node
    weighted = [node for node in needed if set(node.input[1:2]) & set(shapes)]
    chosen = [
        node.name
        for node in weighted
        if node.op_type == "MatMul" or (node.op_type == "Conv" and shapes[node.input[1]][1] > _INPUT_CHANNELS)
    ]
    if not chosen:
        raise ExportError(f"{source}: no weights in fp32 to quantize; export the model again")
    quantize_static(
        model,
        target,
        _Crops(crops),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "MatMul"],
        nodes_to_quantize=chosen,
        per_channel=True,
        # 7-bit weights: without VNNI, 8-bit products are added in 16 bits, which 8-bit weights would overflow
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    onnx.checker.check_model(target, full_check=True)


def run(artifact: Path, kind: str, root: Path) -> None:
    """Add an int8 graph to an artifact, after a comparison with fp32, which is printed.

    Raises: ArtifactError; DatasetError; ExportError, if it has one, or if the new one differs too much.
    """
    manifest, report = load_artifact(artifact), read_report(artifact)
    if "int8" in manifest.graphs:
        raise ExportError(f"{manifest.name} already has an int8 graph, and artifacts are never overwritten")
    # Sets of another kind have no options. Validation without some has those of train, which hold out the same faces.
    recorded = report["recipe"]["data"]
    sources = [*recorded["train"][::-1], recorded["valid"] or {}]
    options = {of["split"]: of["options"] for of in sources if of.get("kind") == kind}
    train, valid = (
        DataSource(kind=kind, root=root, split=split, options=options.get(split, options.get("train", {})))
        for split in ("train", "valid")
    )
    faces = read_split(valid, classes=manifest.labels, of=manifest.name)
    if problem := faces.changed_since(report["data"]):
        raise ExportError(f"{root}: {problem} Restore the data.")
    graph = artifact / GRAPH_NAME
    quantize(artifact / manifest.graph("fp32").file, graph, _drawn_crops(train))
    entry = GraphFile(file=GRAPH_NAME, sha256=sha256_of(graph))
    manifest = manifest.model_copy(update={"graphs": {**manifest.graphs, "int8": entry}})
    models = [open_released(artifact, manifest, precision) for precision in ("fp32", "int8")]
    logits = [model.logits(faces.crops) for model in models]
    fp32, int8 = (scores_of_model(model, faces, rows) for model, rows in zip(models, logits, strict=True))
    print_table(*scores_table(("fp32", "int8"), (fp32[-1], int8[-1])), title=f"{manifest.name} on {faces.title}")
    before, after = (manifest.probabilities(rows, "balanced").argmax(axis=1) for rows in logits)
    same, rise = float((before == after).mean()), int8[-1]["nll"].value - fp32[-1]["nll"].value
    print(f"same label as fp32: {percent(same, 2)} %, negative log likelihood: {rise:+.3f}")
    if same < MIN_SAME or rise > MAX_NLL_RISE:
        graph.unlink()
        raise ExportError(
            f"{manifest.name}: the int8 graph is not released: expected at least {MIN_SAME:.0%} of the labels of fp32, "
            f"and a negative log likelihood that rises by at most {MAX_NLL_RISE}"
        )
    finish(artifact, manifest, report | {"scores": report["scores"] | {"int8": int8}}, canvases(faces.crops))
    print(f"wrote {graph}")
