"""Quantization of a released artifact to int8 for CPUs, with a comparison to fp32.

    mien quantize models/artifacts/NAME --data ferplus=path/to/ferplus [--out models/artifacts/NAME]

Static quantization: the ranges of activations are measured on train crops, and both graphs are evaluated on validation.
With --out, the int8 graph is added to the artifact if it meets the release criteria: faster than fp32 on two cores at
every batch size, and a loss of mean class accuracy of at most half a point.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from mien.data.contract import Array
from mien.data.errors import MienError
from mien.data.readers.base import open_reader
from mien.models.manifest import GraphFile, Interval, Manifest, load_artifact, sha256_of
from mien.training.config import DataSource
from mien.training.data import read_split
from mien.training.evaluate import Model, Scores, evaluate_model, open_graph, run_graph
from mien.training.evaluate import compare as compare_faces
from mien.training.release.export import finish
from mien.training.wording import interval, percent, print_table, scores_table, title_of

GRAPH_NAME: Final = "model.int8.onnx"
CALIBRATION_FACES: Final = 512
MAX_LOSS: Final = 0.005  # of mean class accuracy
THREADS: Final = 2
BATCHES: Final = (1, 8, 32)
_CALIBRATION_BATCH: Final = 64
_INPUT_CHANNELS: Final = 3


class QuantizationError(MienError):
    """An int8 graph that fails the release criteria, or an artifact that already has one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Metrics of fp32 and int8 on the same faces, and their speed."""

    fp32: tuple[Scores, ...]  # natural, balanced; of all faces, then of the clean ones
    int8: tuple[Scores, ...]
    agreement: float  # share of faces with the same top label
    change: Interval  # of mean class accuracy, int8 minus fp32, paired by face
    median_ms: dict[int, tuple[float, ...]]  # by batch: fp32, int8

    def obstacles(self) -> list[str]:
        """Messages about failed release criteria."""
        slow = [batch for batch, (fp32_ms, int8_ms) in self.median_ms.items() if int8_ms >= fp32_ms]
        obstacles = [f"not faster than fp32 at batch {batch}" for batch in slow]
        if self.change.value < -MAX_LOSS:
            obstacles.append(f"mean class accuracy drops by {-100 * self.change.value:.2f} points, the limit is 0.5")
        return obstacles


class _Crops(CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, crops: Array) -> None:
        starts = range(0, len(crops), _CALIBRATION_BATCH)
        self._batches = ({"crops": crops[start : start + _CALIBRATION_BATCH]} for start in starts)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def calibration_crops(source: DataSource, *, faces: int = CALIBRATION_FACES) -> Array:
    """Draw labeled crops, (N, 112, 112, 3) uint8 RGB with N at most `faces`. Raises: DatasetError."""
    reader = open_reader(source.kind, source.resolved_root(), **source.options)
    samples = reader.labeled(source.split)
    chosen = np.random.default_rng(0).choice(len(samples), min(faces, len(samples)), replace=False)
    return np.stack([reader.crop(samples[int(index)]) for index in chosen])


def quantize(source: Path, target: Path, crops: Array) -> None:
    """Quantize an exported fp32 graph to int8.

    Multiplications with weights and convolutions are quantized, except those of the input and depthwise ones, if the
    logits depend on them. Attention products, norms, the head and the rollout stay in fp32.

    Args:
        crops: (N, 112, 112, 3) uint8 RGB, to measure the ranges of activations.
    """
    model = onnx.load(str(source))
    quantize_static(
        model,
        str(target),
        _Crops(crops),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "MatMul"],
        nodes_to_quantize=weighted_nodes(model),
        per_channel=True,
        # 7-bit weights: without VNNI, 8-bit products are added in 16 bits, which 8-bit weights would overflow
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
    )
    onnx.checker.check_model(str(target), full_check=True)


def weighted_nodes(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes to quantize: convolutions except some, and multiplications with weights, each in graph order.

    Convolutions of the input have few channels: they take little time, and their error would affect all other layers.
    The same holds for depthwise convolutions, each channel of which has its own range.
    """
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    needed, waiting = set[str](), ["logits"]
    while waiting:
        node = producers.get(waiting.pop())
        if node is not None and node.name not in needed:
            needed.add(node.name)
            waiting.extend(node.input)
    weighted = [node for node in model.graph.node if node.name in needed and set(node.input[1:2]) & set(shapes)]
    convolutions = [node for node in weighted if node.op_type == "Conv"]
    dense = [node.name for node in convolutions if shapes[node.input[1]][1] > _INPUT_CHANNELS]
    return dense + [node.name for node in weighted if node.op_type == "MatMul"]


def median_ms(sessions: list[onnxruntime.InferenceSession], crops: Array, *, rounds: int) -> tuple[float, ...]:
    """Median time of one inference of (N, 112, 112, 3) crops for each session, in milliseconds.

    The sessions alternate, so that other load on the machine affects all of them equally.
    """
    for session in sessions:
        session.run(None, {"crops": crops})
    taken = np.empty((rounds, len(sessions)))
    for number in range(rounds):
        for column, session in enumerate(sessions):
            started = time.perf_counter()
            session.run(None, {"crops": crops})
            taken[number, column] = time.perf_counter() - started
    return tuple(float(1000 * median) for median in np.median(taken, axis=0))


def compare(manifest: Manifest, fp32: Path, int8: Path, valid: DataSource, *, rounds: int) -> Comparison:
    """Evaluate both graphs on validation, and measure their speed on two threads.

    Raises: DatasetError; QuantizationError, if the validation split changed since the training.
    """
    faces = read_split(valid).for_classes(manifest.labels, of=manifest.name)
    if problem := faces.changed_since(manifest.data_index_sha256):
        raise QuantizationError(f"{valid.root}: {problem} Restore the data.")
    sessions = [open_graph(path, threads=THREADS, spinning=False) for path in (fp32, int8)]
    evaluations, probabilities = [], []
    for session in sessions:
        logits = run_graph(session, faces.crops)
        model = Model(manifest.name, manifest.labels, partial(run_graph, session), manifest, manifest.data_index_sha256)
        evaluations.append(tuple(evaluate_model(model, faces, logits)))
        probabilities.append(manifest.probabilities(logits, "balanced"))
    before, after = probabilities
    gains = {row.name: row.gain for row in compare_faces(before, after, faces.labels, faces.classes)}
    return Comparison(
        fp32=evaluations[0],
        int8=evaluations[1],
        agreement=float((before.argmax(axis=1) == after.argmax(axis=1)).mean()),
        change=gains["mean class accuracy"],
        median_ms={
            batch: median_ms(sessions, np.ascontiguousarray(faces.crops[:batch]), rounds=rounds) for batch in BATCHES
        },
    )


def source_of(manifest: Manifest, kind: str, root: Path, split: str) -> DataSource:
    """A split with its options in the artifact's recipe; if it is not in the recipe, with those of its training set.

    With the same options, the reader holds out the same validation split.
    """
    data: Any = manifest.recipe.get("data", {})
    sources = [source for source in (*data.get("train", []), data.get("valid", {})) if source.get("kind") == kind]
    chosen: dict[str, Any] = next((source for source in sources if source["split"] == split), next(iter(sources), {}))
    return DataSource(kind=kind, root=root, split=split, options=chosen.get("options", {}))


def release(artifact: Path, manifest: Manifest, graph: Path, comparison: Comparison, out: Path) -> None:
    """Write the artifact with its int8 graph to `out`, which may be the artifact itself.

    Raises: QuantizationError, if a release criterion fails; FileExistsError, if `out` is another existing folder.
    """
    obstacles = comparison.obstacles()
    if obstacles:
        raise QuantizationError(f"{manifest.name}: the int8 graph is not released: {'; '.join(obstacles)}")
    if out.resolve() != artifact.resolve():
        shutil.copytree(artifact, out)
    shutil.copyfile(graph, out / GRAPH_NAME)
    entry = GraphFile(file=GRAPH_NAME, sha256=sha256_of(graph), metrics=comparison.int8)
    finish(out, manifest.model_copy(update={"name": out.resolve().name, "graphs": {**manifest.graphs, "int8": entry}}))


def print_comparison(comparison: Comparison, *, title: str) -> None:
    """Print metrics in percent with 95 % intervals, by prior and subset, and median times."""
    for before, after in zip(comparison.fp32, comparison.int8, strict=True):
        print_table(*scores_table({"fp32": before, "int8": after}), title=f"{title}, {title_of(before)}")
    rows = [("same label as fp32", "", percent(comparison.agreement, 2))]
    rows += [("change of mean class accuracy", "", interval(comparison.change))]
    for batch, (fp32_ms, int8_ms) in comparison.median_ms.items():
        faster = f"{int8_ms:.2f} ms, {fp32_ms / int8_ms:.2f} times as fast"
        rows.append((f"{batch} faces, {THREADS} threads, median", f"{fp32_ms:.2f} ms", faster))
    print_table(("speed and agreement", "fp32", "int8"), rows, title=title)


def run(artifact: Path, kind: str, root: Path, *, out: Path | None, rounds: int) -> None:
    """Quantize an artifact, print the comparison, and write the artifact with its int8 graph to `out`, if given.

    Raises: ArtifactError, DatasetError, QuantizationError.
    """
    manifest = load_artifact(artifact)
    if out and "int8" in manifest.graphs:
        raise QuantizationError(f"{manifest.name} already has an int8 graph, and artifacts are never overwritten")
    source = artifact / manifest.graph("fp32").file
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / GRAPH_NAME
        quantize(source, graph, calibration_crops(source_of(manifest, kind, root, "train")))
        comparison = compare(manifest, source, graph, source_of(manifest, kind, root, "valid"), rounds=rounds)
        print_comparison(comparison, title=f"{manifest.name} on {kind} valid")
        if out:
            release(artifact, manifest, graph, comparison, out)
    failed = "; ".join(comparison.obstacles()) or "all met"
    print(f"release criteria: {failed}" + (f"; wrote {out}" if out else ""))
