"""Teachers that see each face and its mirror image once, instead of each augmented crop."""

from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

from mien.models.backbones import Color
from mien.models.manifest import artifact_dir
from mien.training.batches import FaceBatches, epoch_order
from mien.training.config import DistillationConfig
from mien.training.evaluate import open_graph, run_graph
from mien.training.faces import Split, join, read_split
from mien.training.run_folder import recorded
from mien.training.runtime import Runtime
from mien.training.teachers import Teachers, fixed_logits
from mien.training.train import train
from tests.support.training import TINY_DEIT, cpu, drawn_faces, metric_lines, small_recipe
from tests.training.conftest import Trained


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("faces"), train=3, valid=1)


def joined(root: Path, cache_dir: Path, *, color: Color = "luminance") -> Split:
    source = small_recipe(root).data.train[0]
    return join([read_split(source, color=color, cache_dir=cache_dir)])


def teachers_of(*folders: Path) -> Teachers:
    return Teachers(DistillationConfig(mode="soft", teachers=folders, views="fixed")).eval()


def test_fixed_logits_are_the_mean_probability_over_face_and_mirror_image(
    root: Path, trained: Trained, tmp_path: Path
) -> None:
    faces, teachers = joined(root, tmp_path), teachers_of(trained.teacher)
    found = fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path)
    assert found.shape == (len(faces), 7)
    assert found.dtype == np.float32
    for index in (0, len(faces) - 1):
        crop = torch.from_numpy(faces.crops[index].copy())[None]
        with torch.no_grad():
            expected = (teachers(crop).softmax(-1) + teachers(crop.flip(dims=[2])).softmax(-1)) / 2
        np.testing.assert_allclose(np.exp(found[index]), expected[0], atol=1e-5)


def test_a_student_learns_from_fixed_views_of_a_released_mean_without_it_in_the_step(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = artifact_dir("accurate")
    gray = np.random.default_rng(0).integers(0, 256, (3, 112, 112, 1), dtype=np.uint8)
    expected = run_graph(open_graph(folder / "model.onnx"), gray.repeat(3, axis=3))
    np.testing.assert_allclose(teachers_of(folder)(torch.from_numpy(gray)), expected, atol=1e-5)
    forward = create_autospec(Teachers.forward, side_effect=Teachers.forward)
    monkeypatch.setattr(Teachers, "forward", forward)
    distillation = {"mode": "token-soft", "teachers": [str(folder)], "views": "fixed"}
    run = train(small_recipe(root, model=TINY_DEIT, epochs=2, distillation=distillation), tmp_path / "student")
    assert sum(len(call.args[1]) for call in forward.call_args_list) == 2 * 20  # each face and its mirror image
    assert all(line["distillation"] > 0 for line in metric_lines(run) if "loss" in line)
    assert "mobilefacenet/mobilefacenet" in recorded(run)["weight_terms"]


def test_fixed_logits_are_computed_once_per_teacher_faces_and_color(
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
    fixed_logits(teachers, joined(root, tmp_path, color="RGB"), runtime=cpu(), cache_dir=tmp_path)
    assert sum(len(call.args[1]) for call in forward.call_args_list) == 4 * len(faces)
    bf16 = Runtime(torch.device("cpu"), torch.autocast("cpu", torch.bfloat16))
    fixed_logits(teachers, faces, runtime=bf16, cache_dir=tmp_path)
    assert sum(len(call.args[1]) for call in forward.call_args_list) == 6 * len(faces)
    teachers.heads[0] = "mean"  # a cache of the class head is of no use; this teacher has no other
    with pytest.raises(ValueError, match="no distillation token"):
        fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path)


def test_an_interrupted_application_of_the_teachers_continues(
    root: Path, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces, teachers = joined(root, tmp_path), teachers_of(trained.teacher)
    whole = fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path / "whole")
    monkeypatch.setattr("mien.training.teachers._BATCH", 2)
    monkeypatch.setattr("mien.training.teachers._PART", 4)
    compute = Teachers.forward
    interrupted = create_autospec(compute, side_effect=[compute(teachers, torch.zeros(2, 112, 112, 1))] * 5)
    monkeypatch.setattr(Teachers, "forward", interrupted)
    with pytest.raises(StopIteration):  # within the second part
        fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path / "parts")
    assert [path.name.split(".")[1] for path in (tmp_path / "parts").iterdir()] == ["0"]
    resumed = create_autospec(compute, side_effect=compute)
    monkeypatch.setattr(Teachers, "forward", resumed)
    found = fixed_logits(teachers, faces, runtime=cpu(), cache_dir=tmp_path / "parts")
    assert sum(len(call.args[1]) for call in resumed.call_args_list) == 2 * (len(faces) - 4)
    np.testing.assert_allclose(found[4:], whole[4:], atol=1e-5)
    assert len(list((tmp_path / "parts").iterdir())) == 1


def test_a_batch_has_the_logits_of_its_faces(root: Path, tmp_path: Path) -> None:
    faces = joined(root, tmp_path)
    logits = np.repeat(np.arange(len(faces), dtype=np.float32)[:, None], 7, axis=1)
    batches = FaceBatches(faces, small_recipe(root), teacher_logits=logits)
    _, targets, logits = batches[batches.steps_per_epoch + 1]
    order = epoch_order(faces.labels, seed=0, epoch=1)
    chosen = logits[:, 0].long()
    assert torch.equal(chosen, torch.from_numpy(order[8:16]))
    assert torch.equal(targets, torch.from_numpy(faces.targets)[chosen])
