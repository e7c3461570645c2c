"""A teacher, a student distilled from it, and the artifact of the student, trained once for all tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from mien.training.config import Recipe
from mien.training.export import export
from mien.training.loop import metrics
from mien.training.train import train
from tests.support_training import TINY_CNN, TINY_DEIT, drawn_faces, small_recipe


@dataclass(frozen=True, slots=True)
class Trained:
    """Folders that tests read; a test that changes one works on a copy."""

    faces: Path  # 12 drawn faces of each class to train on, 4 to validate
    teacher: Path  # run of a CNN
    student: Path  # run of a hybrid DeiT with a distillation token
    artifact: Path  # of the student

    def teacher_recipe(self, **changes: object) -> Recipe:
        return small_recipe(self.faces, model=TINY_CNN, **changes)


@contextmanager
def few_resamples() -> Iterator[None]:
    """Exact intervals are of no use here, and a thousand resamples of each metric take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "RESAMPLES", 100)
        yield


@pytest.fixture(scope="module", autouse=True)
def fast_intervals() -> Iterator[None]:
    with few_resamples():
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Shared by the processes of the tests: the first one trains, the others wait."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "trained"
    runs = Trained(folder / "faces", folder / "teacher", folder / "student", folder / "artifacts" / "tiny.drawn")
    with FileLock(f"{folder}.lock"), few_resamples():  # before the fixture of the module
        if not runs.artifact.exists():
            drawn_faces(runs.faces, train=12)
            train(runs.teacher_recipe(), runs.teacher)
            distillation = {"mode": "token-soft", "teachers": [str(runs.teacher)], "weight": 0.5, "temperature": 2.0}
            train(small_recipe(runs.faces, model=TINY_DEIT, epochs=6, distillation=distillation), runs.student)
            export([runs.student], "drawn", artifacts_dir=runs.artifact.parent)
    return runs
