"""Teachers: runs and artifacts, alone and together."""

import shutil
from pathlib import Path

import pytest
import torch

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir
from mien.training.config import DistillationConfig, RecipeError
from mien.training.distill import Teachers
from mien.training.run import BEST, RunError, load, load_best, save
from tests.support.models import crops
from tests.training.conftest import Trained


def test_a_teacher_of_other_labels_or_another_contract_is_rejected(trained: Trained, tmp_path: Path) -> None:
    teacher = shutil.copytree(trained.teacher, tmp_path / "teacher")
    state = load(teacher / BEST)
    config, gray = DistillationConfig(mode="soft", teachers=(teacher,)), crops(2, channels=1)
    expected = Teachers(config).eval()(gray)
    save(teacher / BEST, state | {"labels": list(reversed(LABELS))})
    torch.testing.assert_close(Teachers(config).eval()(gray), expected.flip(1))  # by name
    for change, error, message in (
        ({"labels": ["joy", *LABELS[1:]]}, RecipeError, "does not know surprise"),
        ({"contract_id": "0000"}, RunError, "this build has"),
    ):
        save(teacher / BEST, state | change)
        with pytest.raises(error, match=message):
            Teachers(config)


def test_a_released_artifact_teaches_alone_and_together_with_a_run(trained: Trained) -> None:
    run, artifact = trained.teacher, artifact_dir(None)
    alone = Teachers(DistillationConfig(mode="soft", teachers=(artifact,))).eval()
    gray = crops(4, channels=1)
    with torch.no_grad():
        logits = alone(gray)
        both = Teachers(DistillationConfig(mode="soft", teachers=(run, artifact))).eval()(gray)
        expected = (logits.softmax(-1) + load_best(run)[0](gray).class_logits.softmax(-1)) / 2
    torch.testing.assert_close(both.softmax(-1), expected, atol=1e-5, rtol=1e-4)
