"""A teacher, a student distilled from it, and a network with own classes, trained and released once for all tests."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from mien.training import metrics
from mien.training.config import Recipe
from mien.training.export import export
from mien.training.train import train
from tests.support.data_sets import make_folders
from tests.support.training import TINY_CNN, TINY_DEIT, data_of, drawn_faces, small_recipe, with_runtime

CLASSES = ("bored", "happiness", "wide_awake")  # in the order of the recipe; one is an expression
FOLDERS = {"anger": "Wide awake", "happiness": "Happy faces", "sadness": "bored"}


@dataclass(frozen=True, slots=True)
class Trained:
    """Folders that tests read; a test that changes one works on a copy."""

    faces: Path  # 84 drawn faces to train on, 28 to validate, of unequal classes
    teacher: Path  # run of a CNN
    student: Path  # run of a hybrid DeiT with a distillation token
    artifact: Path  # of the student

    def teacher_recipe(self, **changes: object) -> Recipe:
        """Its steps depend on random numbers outside of the batches, too."""
        mix = {"mixup": 0.8, "cutmix": 1.0}
        return small_recipe(self.faces, model=TINY_CNN | {"drop_rate": 0.2}, mix=mix, **changes)


@dataclass(frozen=True, slots=True)
class Own:
    """Drawn angry, happy and sad faces under other names, the run of a CNN on them, and its artifact."""

    root: Path
    run: Path
    artifact: Path


@pytest.fixture(scope="session", autouse=True)
def few_resamples() -> Iterator[None]:
    """Exact intervals are of no use here, and take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "RESAMPLES", 100)
        yield


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of all processes of the tests: with its lock, the first one fills it, and the others wait."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = _shared(tmp_path_factory, "trained")
    runs = Trained(folder / "faces", folder / "teacher", folder / "student", folder / "artifacts" / "tiny.drawn")
    with FileLock(f"{folder}.lock"):
        if not runs.artifact.exists():
            drawn_faces(runs.faces, train=12)
            train(with_runtime(runs.teacher_recipe(), workers=2), runs.teacher)
            distillation = {"mode": "token-soft", "teachers": [str(runs.teacher)], "weight": 0.5, "temperature": 2.0}
            train(small_recipe(runs.faces, model=TINY_DEIT, epochs=6, distillation=distillation), runs.student)
            export(runs.student, "drawn", artifacts_dir=runs.artifact.parent)
    return runs


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    folder = _shared(tmp_path_factory, "own")
    made = Own(folder / "faces", folder / "run", folder / "artifacts" / "tiny.own")
    with FileLock(f"{folder}.lock"):
        if not made.artifact.exists():
            counts = {"train": {"anger": 36, "happiness": 24, "sadness": 12}, "valid": dict.fromkeys(FOLDERS, 4)}
            make_folders(made.root, counts)
            for split in counts:
                for drawn, name in FOLDERS.items():
                    (made.root / split / drawn).rename(made.root / split / name)
            data = data_of(made.root) | {"classes": list(CLASSES)}
            train(small_recipe(made.root, data=data, epochs=6), made.run)
            export(made.run, "own", arch="tiny", artifacts_dir=made.artifact.parent)
    return made
