"""Provenance of a run: data sets and external weights of the model, its initialization and its teachers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mien.models.backbones import published_terms
from mien.models.manifest import MANIFEST_NAME, load_artifact, read_manifest, sha256_of, split_terms
from mien.training.config import WEIGHT_SUFFIXES, DataSource, ModelConfig
from mien.training.faces import Split
from mien.training.loop.run_folder import read_facts, weights_file


def data_facts(sources: Sequence[DataSource], parts: Sequence[Split]) -> dict[str, Any]:
    """Index hash (`data`) and number of faces (`faces`) of each source by kind/split, numbered if that repeats."""
    names: list[str] = []
    for source in sources:
        name = f"{source.kind}/{source.split}"
        repeated = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({repeated + 1})" if repeated else name)
    return {
        "data": {name: part.index_sha256 for name, part in zip(names, parts, strict=True)},
        "faces": {name: len(part) for name, part in zip(names, parts, strict=True)},
    }


def provenance(model: ModelConfig, sources: dict[str, str], *, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Collect the provenance for `run.json` and the manifest.

    Args:
        model: the recipe's model.
        sources: index hash of each training split, by kind/split.
        folders: runs and artifacts used for initialization or as teachers.
    Returns: `learned_from`, hashes by kind/split, including inherited ones; `weights_from`, hashes of weights by name;
        `weight_terms`, publisher and license of third-party weights by name.
    Raises: RunError, ArtifactError, if a folder has no weights.
    """
    learned, weights, terms = dict(sources), {}, {}
    if model.pretrained:
        terms[f"{model.family}/{model.name}"] = published_terms(model.family)
    for folder in folders:
        if folder.suffix in WEIGHT_SUFFIXES:
            weights[folder.name], terms[folder.name] = sha256_of(folder), str(model.init_terms)
            continue
        released = (folder / MANIFEST_NAME).exists()
        own = load_artifact(folder).graph("fp32").sha256 if released else sha256_of(weights_file(folder))
        weights[folder.name if weights.get(folder.name, own) == own else "/".join(folder.parts[-2:])] = own
        inherited = recorded(folder)
        for name, sha256 in inherited["learned_from"].items():
            known = learned.get(name, sha256) == sha256
            learned[name if known else f"{name} of {folder.name}"] = sha256
        weights = inherited["weights_from"] | weights
        terms = inherited["weight_terms"] | terms
    return {"learned_from": learned, "weights_from": weights, "weight_terms": terms}


def recorded(folder: Path) -> dict[str, dict[str, str]]:
    """Provenance of the weights of a run or an artifact, as `provenance` returns it."""
    if (folder / MANIFEST_NAME).exists():
        return read_manifest(folder).model_dump(include={"learned_from", "weights_from", "weight_terms"})
    facts = read_facts(folder)
    return {"learned_from": facts["learned_from"], **split_terms(facts)}
