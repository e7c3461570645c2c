"""Export of finished runs as an artifact for serving, if ONNX and torch agree on real faces.

    mien export runs/ferplus_hybrid_tiny --tag ferplus_v1 [--also muxspace/valid] [--as fast]
    mien export models/artifacts/FAST runs/TEACHER runs/OTHER --arch accurate_112 --tag NAME --one-view --as accurate
    mien export models/artifacts/NAME --refit
    mien export models/artifacts/NAME --agreement
    mien export models/artifacts/NAME --card

Writes models/artifacts/<arch>.<tag>/ with fp32 and fp16 graphs, model.safetensors, manifest.json and card.md. Several
runs or artifacts become one graph, which averages their calibrated probabilities over a face and, without --one-view,
its mirror image.
Temperature, prior correction and confidence threshold are fitted on the validation split that selected the weights.
--refit repeats this for the graphs of an artifact, and rewrites its card. --agreement only fits the agreement to the
votes for the faces (training/release/agreement.py), --card only rewrites license and card.
"""

import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from mien.data.atomic import write_atomic
from mien.data.contract import Array, contract_id
from mien.data.readers.base import reader_of
from mien.models.manifest import (
    ARTIFACTS_DIR,
    MANIFEST_NAME,
    GraphFile,
    GraphInput,
    GraphOutput,
    Manifest,
    Relevance,
    read_manifest,
    sha256_of,
    verify_files,
    write_manifest,
)
from mien.models.network import FaceNetwork, Head
from mien.training import metrics
from mien.training.config import DataSource, ModelConfig, shareable
from mien.training.data import TEST, Split, read_split, read_voted
from mien.training.evaluate import Model, evaluate_model, open_graph, open_released, run_graph, softened
from mien.training.release import card
from mien.training.release.agreement import measure_agreement
from mien.training.release.graphs import (
    OPSET,
    ExportError,
    Released,
    ReleasedEnsemble,
    ReleasedNetwork,
    check_fp16,
    check_fp32,
    tinted,
    torch_logits,
    write_graph,
)
from mien.training.release.operating_point import fit_operating_point
from mien.training.run import add_learned, parameters, read_facts, read_run, recorded, trained_commit
from mien.training.weights import WEIGHTS_NAME, load_trained, save_weights

logger = logging.getLogger("mien.training")

CARD_NAME: Final = "card.md"
_GRAPHS: Final = {"fp32": "model.onnx", "fp16": "model.fp16.onnx"}


@dataclass(frozen=True, slots=True)
class Member:
    """A network to release, with the facts of its training."""

    network: FaceNetwork
    released: ReleasedNetwork
    labels: tuple[str, ...]
    valid: DataSource
    recipe: dict[str, Any]  # without local paths
    commit: str
    data_index_sha256: dict[str, str]
    learned_from: dict[str, str]
    weights_from: dict[str, str]
    weight_terms: dict[str, str]

    @property
    def model(self) -> ModelConfig:
        return ModelConfig.model_validate(self.recipe["model"])


def read_member(folder: Path, head: Head | None = None) -> Member:
    """Read a run or an artifact; `head` replaces the one of a run that validation selected.

    Raises: ExportError, if the run did not train this head; RunError, ArtifactError.
    """
    network, selected, labels = load_trained(folder)
    if (folder / MANIFEST_NAME).exists():
        if head is not None:
            raise ExportError(f"--head is for runs; {folder} is an artifact")
        manifest = read_manifest(folder)
        valid, recipe = _valid_source(manifest), dict(manifest.recipe)
        commit, data = manifest.commit, dict(manifest.data_index_sha256)
    else:
        run, facts = read_run(folder), read_facts(folder)
        valid, recipe = run.data.held_out, shareable(run)
        commit, data = trained_commit(facts), facts["data"]
        trained = run.distillation.trained_heads if len(network.heads()) > 1 else ("class",)
        if head is not None and head not in trained:
            raise ExportError(f"--head {head}: this run trained {', '.join(trained)}")
    return Member(
        network, ReleasedNetwork(network, head or selected), labels, valid, recipe, commit, data, **recorded(folder)
    )


def export(  # noqa: PLR0913 (options of one command)
    folders: Sequence[Path],
    tag: str,
    *,
    arch: str | None = None,
    mirrored: bool = True,
    artifacts_dir: Path = ARTIFACTS_DIR,
    also: tuple[str, ...] = (),
    head: Head | None = None,
    tau: float | None = None,
) -> Path:
    """Write an artifact from a run, or from several runs and artifacts, and return its folder.

    Args:
        folders: runs or artifacts; the first one determines the validation split.
        tag: last part of the name; distinguishes releases of an architecture.
        arch: first part of the name, from the recipe by default; required for several folders.
        mirrored: whether a graph of several networks averages over the mirror image, too.
        also: further `kind/split` to evaluate for the manifest, read from the data directory.
        head: of a run, instead of the one that validation selected.
        tau: weight of the correction for rare classes, instead of the fitted one.
    Raises: ExportError; RunError; CheckpointError; DatasetError; FileExistsError, if the artifact exists.
    """
    if not re.fullmatch(r"\w[\w-]*", tag):
        raise ExportError(f"--tag {tag!r}: expected letters, digits, _ and -, as it becomes part of a folder's name")
    members = [read_member(folder, head) for folder in folders]
    if len({member.labels for member in members}) > 1:
        listed = "; ".join(f"{folder} {', '.join(m.labels)}" for folder, m in zip(folders, members, strict=True))
        raise ExportError(f"networks with different classes cannot be averaged: {listed}")
    if len(members) > 1 and arch is None:
        raise ExportError("several networks in one graph need a name: use --arch")
    final = artifacts_dir / f"{arch or members[0].model.arch or members[0].model.name}.{tag}"
    with new_artifact(final) as staging:
        other_splits = _other_splits(also, members[0].labels)
        # a run still knows the root of the same validation split, which artifacts leave out
        of_first = members[0].valid
        known = (m for m in members if m.valid.root and m.valid == of_first.model_copy(update={"root": m.valid.root}))
        chosen = next(known, members[0])
        valid = _read_unchanged(chosen.valid, chosen.data_index_sha256, chosen.labels)
        for folder, member in zip(folders, members, strict=True):
            if problem := valid.changed_since(member.data_index_sha256):
                logger.warning("%s: %s", folder, problem)
        released: Released = members[0].released
        if len(members) == 1:
            save_weights(members[0].network, staging)
        else:  # each with its own temperature, so that their probabilities can be averaged
            networks = [member.released for member in members]
            logits = [torch_logits(network, valid.crops) for network in networks]
            temperatures = [round(metrics.fit_temperature(of_network, valid.labels), 4) for of_network in logits]
            released = ReleasedEnsemble(networks, temperatures, mirrored=mirrored)
        _write_and_check(released, staging, valid.crops)
        manifest = _manifest(staging, final.name, members, mirrored=mirrored)
        voted = read_voted(chosen.valid, members[0].labels)
        describe(staging, manifest, valid, voted, other_splits, tau=tau)
    return final


def _valid_source(manifest: Manifest) -> DataSource:
    data: Any = manifest.recipe["data"]
    return DataSource.model_validate(data["valid"])


def _read_unchanged(source: DataSource, trained_with: Mapping[str, str], labels: tuple[str, ...]) -> Split:
    """Read the validation split. Raises: ExportError, if it is not the one of the training; DatasetError."""
    if source.fold is not None:
        raise ExportError(
            f"{source.kind} {source.split}: the run is a fold of a cross-validation. Release the recipe itself."
        )
    faces = read_split(source)
    if faces.index_sha256 not in trained_with.values():
        problem = faces.changed_since(trained_with) or f"{source.split} is not in the record of the training."
        raise ExportError(f"{source.resolved_root()}: {problem} Restore the data, or train again.")
    return faces.for_classes(labels, of="the network")


def _other_splits(also: tuple[str, ...], labels: tuple[str, ...]) -> list[Split]:
    """Read `kind/split` texts. Raises: ExportError; DatasetError; RecipeError, without a data directory."""
    splits = []
    for text in also:
        kind, slash, split = text.partition("/")
        if not slash:
            raise ExportError(f"--also {text!r}: expected KIND/SPLIT, for example muxspace/valid")
        if split == TEST:
            raise ExportError(
                f"--also {text!r}: a release has no metrics of test splits; use mien evaluate, at the end"
            )
        faces = read_split(DataSource(kind=kind, split=split))
        splits.append(faces.for_classes(labels, of="the network"))
    return splits


def _write_and_check(released: Released, folder: Path, crops: Array) -> None:
    """Write the graphs, and compare them with torch on real and tinted crops.

    A mean of several networks has no fp16 graph beside it: too large.
    """
    both = np.concatenate([crops, tinted(crops[:512])])
    expected = torch_logits(released, both)
    graph = folder / _GRAPHS["fp32"]
    write_graph(released, graph)
    fp32 = run_graph(open_graph(graph), both)
    logger.info("fp32 graph against torch: largest difference of a probability %.1e", check_fp32(expected, fp32))
    if isinstance(released, ReleasedNetwork):
        released.backbone.half()
        write_graph(released, folder / _GRAPHS["fp16"])
        same = check_fp16(fp32, run_graph(open_graph(folder / _GRAPHS["fp16"]), both))
        logger.info("fp16 graph: same label as fp32 on %.2f %% of the faces", 100 * same)


def _manifest(folder: Path, name: str, members: list[Member], *, mirrored: bool) -> Manifest:
    """Manifest without the values fitted on validation; see `describe`."""
    first = members[0]
    learned: dict[str, str] = {}
    for member in members:
        add_learned(learned, member.learned_from, of=member.recipe["name"])
    weights = {key: value for member in members for key, value in member.weights_from.items()}
    terms = {key: value for member in members for key, value in member.weight_terms.items()}
    recipe = {"data": first.recipe["data"], "mirrored": mirrored, "members": [member.recipe for member in members]}
    relevance = open_graph(folder / _GRAPHS["fp32"]).get_outputs()[1:]
    return Manifest(
        name=name,
        labels=first.labels,
        contract_id=contract_id(),
        input=GraphInput(),
        output=GraphOutput(shape=(-1, len(first.labels))),
        explain=Relevance(name=relevance[0].name, shape=(-1, *relevance[0].shape[1:])) if relevance else None,
        graphs={
            precision: GraphFile(file=file, sha256=sha256_of(folder / file))
            for precision, file in _GRAPHS.items()
            if (folder / file).exists()
        },
        opset=OPSET,
        head=first.released.head if len(members) == 1 else "mean",
        color="RGB" if any(member.model.color == "RGB" for member in members) else "luminance",
        parameters=sum(parameters(member.network) for member in members),
        temperature=1.0,
        prior_correction=(0.0,) * len(first.labels),
        confidence_threshold=0.0,
        metrics=(),
        recipe=first.recipe if len(members) == 1 else recipe,
        commit=first.commit,
        # the first one determines the validation split
        data_index_sha256={key: value for member in members[::-1] for key, value in member.data_index_sha256.items()},
        learned_from=learned,
        weights_from=weights,
        weight_terms=terms,
        license=_license(learned, terms),
        files={WEIGHTS_NAME: sha256_of(folder / WEIGHTS_NAME)} if len(members) == 1 else {},
    )


def _license(learned_from: Iterable[str], weight_terms: dict[str, str]) -> str:
    """License of the weights, with the terms of their data sets (`kind/split`) and of third-party weights."""
    kinds = dict.fromkeys(name.partition("/")[0] for name in learned_from)
    sets = "; ".join(f"{reader_of(kind).title}: {reader_of(kind).terms}" for kind in kinds)
    foreign = "".join(f" Initialized from {name}: {terms}." for name, terms in weight_terms.items())
    return f"Weights: Apache-2.0, as far as the authors hold rights. Trained on {sets}.{foreign}"


def describe_again(
    folder: Path,
    *,
    part: Literal["all", "agreement", "card"] = "all",
    also: tuple[str, ...] = (),
    tau: float | None = None,
) -> None:
    """Fit and evaluate the graphs of an artifact again; or only one part, or only rewrite license and card.

    Raises: ArtifactError; ExportError; DatasetError.
    """
    manifest = read_manifest(folder)
    # except its card: a kill between writing card and manifest is repaired by the same command
    files = {name: sha256 for name, sha256 in manifest.files.items() if name != CARD_NAME}
    verify_files(folder, files | {graph.file: graph.sha256 for graph in manifest.graphs.values()})
    # with the terms that the readers state today
    licensed = manifest.model_copy(update={"license": _license(manifest.learned_from, manifest.weight_terms)})
    if part == "card":
        finish(folder, licensed)
        return
    source = _valid_source(manifest)
    valid = _read_unchanged(source, manifest.data_index_sha256, manifest.labels)
    voted = read_voted(source, manifest.labels)
    if part != "agreement":
        others = _other_splits(also, manifest.labels)
        describe(folder, licensed, valid, voted, others, tau=tau)
        return
    if voted is None:
        raise ExportError(
            f"{source.kind} {source.split} has no votes for the labels of the model, so the agreement cannot be fitted."
        )
    finish(folder, measure_agreement(manifest, open_released(folder, manifest).logits, voted))


def describe(
    folder: Path,
    manifest: Manifest,
    valid: Split,
    voted: Split | None,
    also: Sequence[Split],
    *,
    tau: float | None = None,
) -> None:
    """Fit the operating point of the graphs in `folder`, evaluate them, and write manifest and card.

    Args:
        valid: the validation split that selected the weights.
        voted: its faces with votes, if it has some.
        also: further splits to evaluate.
        tau: weight of the correction, instead of the fitted one.
    """
    classify = open_released(folder, manifest).logits
    logits = classify(valid.crops)
    point = fit_operating_point(logits, valid.labels, tau)
    logger.info("temperature %.4f, tau of the prior correction %.2f", point.temperature, point.tau)
    threshold = metrics.confidence_threshold(softened(point.cross_fitted["balanced"], valid.crops), valid.labels)
    logger.info("confidence threshold %.4f", threshold)
    fitted = manifest.model_copy(
        update={
            "temperature": point.temperature,
            "prior_correction": point.prior_correction,
            "confidence_threshold": round(threshold, 4),
        }
    )
    if voted is not None:
        fitted = measure_agreement(fitted, classify, voted)
    model = Model(fitted.name, fitted.labels, classify, fitted, fitted.data_index_sha256)
    scored = evaluate_model(model, valid, logits, point.cross_fitted)
    for faces in also:
        scored += evaluate_model(model, faces, classify(faces.crops))
    graphs = dict(fitted.graphs)
    if "int8" in graphs:
        int8 = evaluate_model(model, valid, run_graph(open_graph(folder / graphs["int8"].file), valid.crops))
        graphs["int8"] = graphs["int8"].model_copy(update={"metrics": tuple(int8)})
    finish(folder, fitted.model_copy(update={"metrics": tuple(scored), "graphs": graphs}))


def finish(folder: Path, manifest: Manifest) -> None:
    """Write the card and the manifest."""
    path = folder / CARD_NAME
    write_atomic(path, card.render(manifest))
    write_manifest(folder, manifest.model_copy(update={"files": {**manifest.files, path.name: sha256_of(path)}}))


@contextmanager
def new_artifact(final: Path) -> Iterator[Path]:
    """A folder that is renamed to `final` if the block succeeds and removed if it fails.

    Raises: FileExistsError, if `final` exists.
    """
    if final.exists():
        raise FileExistsError(f"{final} exists, and artifacts are never overwritten: choose another --tag")
    staging = final.with_name(f".{final.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
