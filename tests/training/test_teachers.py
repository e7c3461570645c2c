"""Teachers: runs and artifacts, alone and together, by each augmented crop or once by face and mirror image."""

import shutil
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir
from mien.training import checkpoint
from mien.training.batches import FaceBatches, epoch_order
from mien.training.config import DistillationConfig, RecipeError
from mien.training.faces import Split, join, read_split
from mien.training.run_folder import RunError, load_best, recorded
from mien.training.teachers import Teachers, fixed_logits
from mien.training.train import train
from tests.support.models import crops
from tests.support.training import TINY_DEIT, cpu, drawn_faces, metric_lines, small_recipe
from tests.training.conftest import Trained


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("faces"), train=3, valid=1)


def joined(root: Path, cache_dir: Path) -> Split:
    return join([read_split(small_recipe(root).data.train[0], color="luminance", cache_dir=cache_dir)])


def teachers_of(*folders: Path) -> Teachers:
    return Teachers(DistillationConfig(mode="soft", teachers=folders, views="fixed")).eval()


def test_fixed_logits_are_the_mean_probability_over_face_and_mirror_image(
    root: Path, trained: Trained, tmp_path: Path
) -> None:
    faces, teachers = joined(root, tmp_path), teachers_of(trained.teacher)
    found = fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path)
    for index in (0, len(faces) - 1):
        crop = torch.from_numpy(faces.crops[index].copy())[None]
        with torch.no_grad():
            expected = (teachers(crop).softmax(-1) + teachers(crop.flip(dims=[2])).softmax(-1)) / 2
        np.testing.assert_allclose(np.exp(found[index]), expected[0], atol=1e-5)


def test_a_student_learns_from_fixed_views_of_a_released_mean_without_it_in_the_step(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = artifact_dir("accurate")
    forward = create_autospec(Teachers.forward, side_effect=Teachers.forward)
    monkeypatch.setattr(Teachers, "forward", forward)
    distillation = {"mode": "token-soft", "teachers": [str(folder)], "views": "fixed"}
    run = train(small_recipe(root, model=TINY_DEIT, epochs=2, distillation=distillation), tmp_path / "student")
    assert sum(len(call.args[1]) for call in forward.call_args_list) == 2 * 20  # each face and its mirror image
    assert all(line["distillation"] > 0 for line in metric_lines(run) if "loss" in line)
    assert "mobilefacenet/mobilefacenet" in recorded(run)["weight_terms"]


def test_fixed_logits_are_computed_once_per_teacher_and_head(
    root: Path, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces, teachers = joined(root, tmp_path), teachers_of(trained.teacher)
    first = fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path)
    forward = create_autospec(Teachers.forward, side_effect=Teachers.forward)
    monkeypatch.setattr(Teachers, "forward", forward)
    np.testing.assert_array_equal(fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path), first)
    forward.assert_not_called()
    with torch.no_grad():
        next(teachers.parameters()).add_(1)
    changed = fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path)
    assert sum(len(call.args[1]) for call in forward.call_args_list) == 2 * len(faces)
    assert np.abs(changed - first).max() > 1e-3
    teachers.heads[0] = "mean"  # a cache of the class head is of no use; this teacher has no other
    with pytest.raises(ValueError, match="no distillation token"):
        fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path)


def test_a_batch_has_the_logits_of_its_faces(root: Path, tmp_path: Path) -> None:
    faces = joined(root, tmp_path)
    logits = np.repeat(np.arange(len(faces), dtype=np.float32)[:, None], 7, axis=1)
    batches = FaceBatches(faces, small_recipe(root), teacher_logits=logits)
    _, targets, logits = batches[batches.steps_per_epoch + 1]
    order = epoch_order(faces.labels, seed=0, epoch=1)
    chosen = logits[:, 0].long()
    assert torch.equal(chosen, torch.from_numpy(order[8:16]))
    assert torch.equal(targets, torch.from_numpy(faces.targets)[chosen])


def test_a_teacher_of_other_labels_or_another_contract_is_rejected(trained: Trained, tmp_path: Path) -> None:
    teacher = shutil.copytree(trained.teacher, tmp_path / "teacher")
    state = checkpoint.read(teacher / checkpoint.BEST)
    config, gray = DistillationConfig(mode="soft", teachers=(teacher,)), crops(2, channels=1)
    expected = Teachers(config).eval()(gray)
    checkpoint.save(teacher / checkpoint.BEST, state | {"labels": list(reversed(LABELS))})
    torch.testing.assert_close(Teachers(config).eval()(gray), expected.flip(1))  # by name
    for change, error, message in (
        ({"labels": ["joy", *LABELS[1:]]}, RecipeError, "does not know surprise"),
        ({"contract_id": "0000"}, RunError, "this build has"),
    ):
        checkpoint.save(teacher / checkpoint.BEST, state | change)
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
