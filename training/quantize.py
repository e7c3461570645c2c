"""Quantization of a released artifact to int8 for CPUs, with a comparison to fp32.

    mien quantize models/artifacts/NAME --data ferplus=path/to/ferplus [--out models/artifacts/NAME]

Static quantization: the ranges of activations are measured on train crops, and the served probabilities of both graphs
are compared on validation. With --out, the int8 graph is added to the artifact if it gives nearly all faces the same
label and the labels the same likelihood. Serving measures whether it is faster (docs/decisions/0006-int8-on-cpus.md).
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from mien.data.contract import Array
from mien.data.errors import MienError
from mien.data.readers.base import open_reader
from mien.models.manifest import GraphFile, load_artifact, read_report, sha256_of
from mien.training import metrics
from mien.training.config import DataSource
from mien.training.data import read_split
from mien.training.evaluate import open_released, scores_of_model
from mien.training.export import finish
from mien.training.graphs import PHOTO_GRAPHS, canvases, write_photo_graphs
from mien.training.metrics import interval, percent, print_table, scores_table

GRAPH_NAME: Final = "model.int8.onnx"
CALIBRATION_FACES: Final = 512
MIN_SAME: Final = 0.97  # share of faces with the label of fp32
MAX_NLL_RISE: Final = 0.01  # rise of the mean negative log likelihood of all faces, nats
_INPUT_CHANNELS: Final = 3


class QuantizationError(MienError):
    """An int8 graph that fails the release criteria, or an artifact that cannot have one."""


def _drawn_crops(source: DataSource) -> Array:
    """Random labeled crops, (N, 112, 112, 3) uint8 RGB. Raises: DatasetError."""
    reader = open_reader(source.kind, source.resolved_root(), **source.options)
    samples = reader.labeled(source.split)
    chosen = np.random.default_rng(0).choice(len(samples), min(CALIBRATION_FACES, len(samples)), replace=False)
    return np.stack([reader.crop(samples[int(index)]) for index in chosen])


class _Crops(CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, crops: Array) -> None:
        self._batches = iter(np.split(crops, range(64, len(crops), 64)))

    def get_next(self) -> dict[str, Array] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"crops": batch}


def quantize(source: Path, target: Path, crops: Array) -> None:
    """Quantize an fp32 graph, with the ranges of activations of crops (N, 112, 112, 3) uint8 RGB.

    Multiplications with weights and convolutions on which the logits depend become int8, except those of the input
    and depthwise ones: they have few channels, take little time, and their error affects all other layers. Attention
    products, norms, the head and the rollout stay in fp32. Raises: QuantizationError, without such nodes.
    """
    model = onnx.load(str(source))
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    needed, waiting = dict[str, Any](), ["logits"]
    while waiting:
        node = producers.get(waiting.pop())
        if node is not None and node.name not in needed:
            needed[node.name] = node
            waiting.extend(node.input)
    weighted = [node for node in model.graph.node if node.name in needed and set(node.input[1:2]) & set(shapes)]
    dense = [node for node in weighted if node.op_type == "Conv" and shapes[node.input[1]][1] > _INPUT_CHANNELS]
    chosen = [node.name for node in (*dense, *(node for node in weighted if node.op_type == "MatMul"))]
    if not chosen:
        raise QuantizationError(f"{source}: no weights in fp32 to quantize; export the model again")
    quantize_static(
        model,
        str(target),
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
    onnx.checker.check_model(str(target), full_check=True)


def _source(report: dict[str, Any], kind: str, root: Path, split: str) -> DataSource:
    """A split with its options in the recipe, or else those of its training set, to hold out the same faces."""
    data = report["recipe"]["data"]
    sources = [source for source in (*data["train"][::-1], data["valid"]) if source and source["kind"] == kind]
    options = {source["split"]: source["options"] for source in sources}
    return DataSource(kind=kind, root=root, split=split, options=options.get(split, options.get("train", {})))


def run(artifact: Path, kind: str, root: Path, *, out: Path | None) -> None:
    """Quantize an artifact, print the comparison, and write the artifact with its int8 graph to `out`, if given.

    Raises: ArtifactError, DatasetError, QuantizationError; FileExistsError, if `out` is another existing folder.
    """
    manifest, report = load_artifact(artifact), read_report(artifact)
    if out and "int8" in manifest.graphs:
        raise QuantizationError(f"{manifest.name} already has an int8 graph, and artifacts are never overwritten")
    faces = read_split(_source(report, kind, root, "valid"), classes=manifest.labels, of=manifest.name)
    if problem := faces.changed_since(report["data"]):
        raise QuantizationError(f"{root}: {problem} Restore the data.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / artifact.resolve().name
        shutil.copytree(artifact, folder)
        crops = _drawn_crops(_source(report, kind, root, "train"))
        quantize(folder / manifest.graph("fp32").file, folder / GRAPH_NAME, crops)
        entry = GraphFile(file=GRAPH_NAME, sha256=sha256_of(folder / GRAPH_NAME))
        name = (out or artifact).resolve().name
        manifest = manifest.model_copy(update={"name": name, "graphs": {**manifest.graphs, "int8": entry}})
        columns, served = dict[str, Any](), list[Array]()
        for precision in ("fp32", "int8"):
            model = open_released(folder, manifest, precision)
            logits = model.logits(faces.crops)
            scores = scores_of_model(model, faces, logits)  # The last ones are those of int8.
            columns |= {f"{precision}, {of['prior']}": of for of in scores}
            served.append(model.probabilities(logits, faces.crops, "balanced"))
        print_table(*scores_table(columns), title=f"{name} on {kind} valid, {len(faces):,} faces")
        losses = [metrics.negative_log_likelihood(probabilities, faces.labels) for probabilities in served]
        rise = metrics.mean(losses[1] - losses[0])
        same = float((served[0].argmax(axis=1) == served[1].argmax(axis=1)).mean())
        change = interval(rise, 3, scale=1)
        print(f"same label as fp32: {percent(same, 2)} %; change of the negative log likelihood: {change}")
        if same < MIN_SAME or rise.value > MAX_NLL_RISE:
            raise QuantizationError(
                f"{name}: the int8 graph is not released: expected at least {MIN_SAME:.0%} of the labels of fp32, and "
                f"a negative log likelihood that rises by at most {MAX_NLL_RISE}"
            )
        if out:
            manifest = write_photo_graphs(folder, manifest, canvases(faces.crops))  # an error leaves `out` as it was
            if out.resolve() != artifact.resolve():
                shutil.copytree(artifact, out)
            for graph in (GRAPH_NAME, *PHOTO_GRAPHS.values()):
                shutil.copyfile(folder / graph, out / graph)
            finish(out, manifest, report | {"scores": report["scores"] | {"int8": scores}})
            print(f"wrote {out}")
