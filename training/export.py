"""Turn a finished run into an artefact that serving loads, or refuse: ONNX must answer as torch does on real faces.

    python -m training.export runs/ferplus_hybrid_tiny --tag ferplus_v1 [--also muxspace/valid] [--default]

Writes models/artefacts/<arch>.<tag>/ with fp32 and fp16 graphs, manifest.json and card.md. Temperature and abstain
threshold are fitted on the validation split that chose the weights.
"""

import argparse
import logging
import shutil
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from rich.logging import RichHandler
from scipy.special import softmax
from torch import Tensor, nn

from data.contract import CROP_PX, LABELS, Array, contract_id
from data.readers.base import readers
from data.tree import DatasetError
from models.manifest import (
    ARTEFACTS_DIR,
    GraphFile,
    GraphInput,
    GraphOutput,
    Manifest,
    Relevance,
    sha256_of,
    write_manifest,
)
from models.network import FaceNetwork, Head, select_head
from models.rollout import has_attention, recorded_attention, rollout
from training import card, checkpoint, metrics
from training.config import DataSource, Recipe, RecipeError
from training.evaluate import Evaluation, calibrated, open_graph, read_split, run_graph, score
from training.run import RunError, load_best, parameters, read_facts, read_run
from training.teachers import teacher_sha256

logger = logging.getLogger("training")

OPSET: Final = 20
MAX_FP32_DIFFERENCE: Final = 1e-4  # largest difference of a probability
MIN_FP16_AGREEMENT: Final = 0.999  # share of faces with the same top label


class ExportError(RuntimeError):
    """A run that must not be released: the graph does not answer as the network does."""


class _Graph(nn.Module):
    """What is exported: uint8 crops to float32 logits of the chosen head, the backbone in one precision.

    A transformer also answers with its attention rollout, which costs next to nothing beside the logits.
    """

    def __init__(self, network: FaceNetwork, head: Head, dtype: torch.dtype) -> None:
        super().__init__()
        self.preprocess = network.preprocess  # stays in fp32: a mean over 12,544 pixels loses bits in fp16
        self.backbone = network.backbone.to(dtype)
        self.head: Head = head
        self.dtype = dtype
        self.explains = has_attention(network.backbone)

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:  # (N, 112, 112, 3) uint8
        pixels = self.preprocess(crops).to(self.dtype)
        if not self.explains:
            return (select_head(self.backbone(pixels), self.head),)  # (N, 7) float32
        with recorded_attention(self.backbone) as attentions:
            logits = select_head(self.backbone(pixels), self.head)
        return logits, rollout(attentions, head=self.head)  # (N, 7), (N, side, side) float32


def write_graph(network: FaceNetwork, head: Head, path: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Export a network with a dynamic batch and check the file's well-formedness. The network's dtype changes."""
    example = torch.zeros(2, CROP_PX, CROP_PX, 3, dtype=torch.uint8)
    graph = _Graph(network, head, dtype).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's deprecation notes speak of its own insides
        torch.onnx.export(
            graph,
            (example,),
            str(path),
            input_names=["crops"],
            output_names=["logits", "relevance"] if graph.explains else ["logits"],
            opset_version=OPSET,
            dynamic_shapes={"crops": {0: torch.export.Dim("faces", min=1, max=4096)}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(path))
    for node in model.graph.node:  # stack traces and paths of the machine that exported do not belong in a release
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    for function in model.functions:
        del function.metadata_props[:]
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


@torch.no_grad()
def torch_logits(network: FaceNetwork, head: Head, crops: Array, *, batch: int = 128) -> Array:
    """(N, 7) float32 logits of the network in fp32."""
    parts = [torch.from_numpy(np.array(crops[start : start + batch])) for start in range(0, len(crops), batch)]
    return np.concatenate([select_head(network(part), head).numpy() for part in parts])


def check_fp32(expected_logits: Array, found_logits: Array) -> float:
    """Largest difference of a probability, (N, 7) each. Raises: ExportError, when it is above the bound."""
    difference = float(np.abs(softmax(expected_logits, axis=1) - softmax(found_logits, axis=1)).max())
    if not difference <= MAX_FP32_DIFFERENCE:
        raise ExportError(f"fp32 graph: a probability differs from torch's by {difference:.2e}, 1e-4 is allowed")
    return difference


def check_fp16(fp32_logits: Array, fp16_logits: Array) -> float:
    """Share of faces with the same top label, (N, 7) each. Raises: ExportError, when it is below the bound."""
    same = float((fp32_logits.argmax(axis=1) == fp16_logits.argmax(axis=1)).mean())
    if not same >= MIN_FP16_AGREEMENT:
        raise ExportError(f"fp16 graph: {100 * same:.2f} % of the faces keep their label, at least 99.9 % must")
    return same


def coloured(crops: Array, *, seed: int = 0) -> Array:
    """Tint gray crops so that a check also exercises the graph's way from RGB to luminance; as `crops`."""
    tint = np.random.default_rng(seed).uniform(0.4, 1.0, (len(crops), 1, 1, 3))
    return np.clip(crops * tint, 0, 255).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What validation decides after training."""

    temperature: float
    abstain_threshold: float
    cross_fitted: Array  # (N, 7) probabilities by temperatures fitted without the face


def calibrate(logits: Array, labels: Array) -> Calibration:
    """Fit temperature and abstain threshold, (N, 7) logits against (N,) class indices."""
    cross_fitted = metrics.cross_fitted_probabilities(logits, labels)
    temperature = metrics.fit_temperature(logits, labels)
    return Calibration(temperature, metrics.abstain_threshold(cross_fitted, labels), cross_fitted)


def export(run: Path, tag: str, *, artefacts_dir: Path = ARTEFACTS_DIR, also: tuple[str, ...] = ()) -> Path:
    """Write an artefact from a run and return its folder.

    Args:
        run: a run folder.
        tag: distinguishes releases of one architecture.
        artefacts_dir: where artefacts live.
        also: further `kind/split` to report in the manifest, read from the data directory.
    Raises: ExportError; RunError; CheckpointError; DatasetError; FileExistsError, for an artefact that exists already.
    """
    recipe = read_run(run)
    name = f"{recipe.model.arch or recipe.model.name}.{tag}"
    final = artefacts_dir / name
    if final.exists():
        raise FileExistsError(f"{final} exists: a released artefact is not overwritten; choose another --tag")
    staging = artefacts_dir / f".{name}.part"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _fill(staging, name, run, recipe, also)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def _fill(folder: Path, name: str, run: Path, recipe: Recipe, also: tuple[str, ...]) -> None:
    valid = recipe.data.valid
    crops, labels, votes = read_split(valid.kind, valid.resolved_root(), valid.split, valid.options)
    network, state = load_best(run)
    head: Head = state["head"]
    count = parameters(network)
    logits = _write_and_check(network, head, folder, crops)
    calibration = calibrate(logits, labels)
    probabilities = calibrated(logits, calibration.temperature)
    own = score(
        probabilities, labels, votes=votes, data=valid.kind, split=valid.split, calibrated=calibration.cross_fitted
    )
    evaluations = [own, *(_evaluate_also(folder, text, calibration.temperature) for text in also)]
    facts = read_facts(run)
    manifest = Manifest(
        name=name,
        labels=LABELS,
        contract_id=contract_id(),
        input=GraphInput(),
        output=GraphOutput(),
        explain=_relevance(folder / "model.onnx"),
        graphs={
            "fp32": GraphFile(file="model.onnx", sha256=sha256_of(folder / "model.onnx")),
            "fp16": GraphFile(file="model.fp16.onnx", sha256=sha256_of(folder / "model.fp16.onnx")),
        },
        opset=OPSET,
        head=head,
        colour=recipe.model.colour,
        parameters=count,
        temperature=round(calibration.temperature, 4),
        abstain_threshold=round(calibration.abstain_threshold, 4),
        metrics=tuple(evaluation.for_manifest() for evaluation in evaluations),
        recipe=_shareable(recipe),
        commit=facts["commit"],
        data_index_sha256=facts["data"],
        teacher_sha256=_teacher_sha256(recipe),
        licence=_licence(recipe),
        files={},
    )
    (folder / "card.md").write_text(card.render(manifest, evaluations), encoding="utf-8")
    write_manifest(folder, manifest.model_copy(update={"files": {"card.md": sha256_of(folder / "card.md")}}))


def _write_and_check(network: FaceNetwork, head: Head, folder: Path, crops: Array) -> Array:
    """Write both graphs, compare them with torch on real and tinted crops; returns fp32 logits on `crops`."""
    both = np.concatenate([crops, coloured(crops[:512])])
    expected = torch_logits(network, head, both)
    write_graph(network, head, folder / "model.onnx")
    fp32 = run_graph(open_graph(folder / "model.onnx"), both)
    difference = check_fp32(expected, fp32)
    write_graph(network, head, folder / "model.fp16.onnx", dtype=torch.float16)
    agreement = check_fp16(fp32, run_graph(open_graph(folder / "model.fp16.onnx"), both))
    logger.info("onnx against torch: fp32 max |dp| %.1e, fp16 same label on %.2f %%", difference, 100 * agreement)
    return fp32[: len(crops)]


def _relevance(graph: Path) -> Relevance | None:
    outputs = open_graph(graph).get_outputs()
    if len(outputs) == 1:
        return None
    rows, columns = outputs[1].shape[1:]
    return Relevance(name=outputs[1].name, shape=(-1, rows, columns))


def _evaluate_also(folder: Path, text: str, temperature: float) -> Evaluation:
    kind, _, split = text.partition("/")
    root = DataSource(kind=kind, split=split).resolved_root()
    crops, labels, votes = read_split(kind, root, split, {})
    logits = run_graph(open_graph(folder / "model.onnx"), crops)
    probabilities = calibrated(logits, temperature)
    return score(probabilities, labels, votes=votes, data=kind, split=split)


def _shareable(recipe: Recipe) -> dict[str, object]:
    """The recipe without the paths of the machine that ran it."""
    values: dict[str, Any] = recipe.model_dump(mode="json", exclude={"runtime": True})
    for source in (*values["data"]["train"], values["data"]["valid"]):
        source["root"] = None
    return values


def _licence(recipe: Recipe) -> str:
    """Terms of the weights: their own, and those of every set that they learned from."""
    kinds = dict.fromkeys(source.kind for source in recipe.data.train)
    sets = "; ".join(f"{readers()[kind].title}: {readers()[kind].terms}" for kind in kinds)
    return f"Weights: Apache-2.0 as far as those who trained them hold rights. Learned from {sets}."


def _teacher_sha256(recipe: Recipe) -> str | None:
    teachers = recipe.distillation.teachers
    return teacher_sha256(teachers[0]) if teachers else None


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.export", description="Release a run as an artefact.")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--tag", required=True, help="distinguishes releases, e.g. ferplus_v1")
    parser.add_argument("--also", action="append", default=[], metavar="KIND/SPLIT", help="report this split as well")
    parser.add_argument("--artefacts", type=Path, default=ARTEFACTS_DIR, help="where to write")
    parser.add_argument("--default", action="store_true", help="make it the model that serving loads")
    options = parser.parse_args(arguments)
    # the exporter's own notes run to hundreds of lines
    logging.basicConfig(level=logging.ERROR, format="%(message)s", handlers=[RichHandler(show_path=False)])
    logger.setLevel(logging.INFO)
    try:
        folder = export(options.run, options.tag, artefacts_dir=options.artefacts, also=tuple(options.also))
    except (ExportError, RunError, RecipeError, checkpoint.CheckpointError, DatasetError, FileExistsError) as error:
        logger.error("%s", error)
        return 1
    if options.default:
        (options.artefacts / "DEFAULT").write_text(folder.name + "\n", encoding="utf-8")
    logger.info("wrote %s", folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
