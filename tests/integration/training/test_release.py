"""From pictures to an artefact: teacher, distilled student, export, evaluation; and what is refused on the way."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from data.contract import LABELS
from data.readers.folders import Folders
from models.manifest import load_artefact
from models.network import select_head
from models.rollout import recorded_attention, rollout
from tests.data_sets import make_raf_db
from tests.support_training import TINY_CNN, TINY_DEIT, drawn_faces, small_recipe
from training import evaluate, export
from training.engine import TrainingDiverged
from training.loader import load_faces
from training.run import load_best, read_facts
from training.train import train


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Data, the student's run and its artefact."""
    folder = tmp_path_factory.mktemp("release")
    root = drawn_faces(folder / "faces", train=12)
    teacher = train(small_recipe(root, model=TINY_CNN), folder / "teacher")
    distillation = {"mode": "token-soft", "teachers": [str(teacher)], "weight": 0.5, "temperature": 2.0}
    run = train(small_recipe(root, model=TINY_DEIT, epochs=6, distillation=distillation), folder / "student")
    return root, run, export.export(run, "drawn", artefacts_dir=folder / "artefacts")


def test_the_artefact_verifies_and_says_what_it_is(released: tuple[Path, Path, Path]) -> None:
    _, run, folder = released
    manifest = load_artefact(folder)
    assert folder.name == manifest.name == "tiny.drawn"
    assert manifest.labels == LABELS
    assert manifest.colour == "luminance"
    assert manifest.teacher_sha256 is not None
    assert "class folders: those of whoever owns the pictures" in manifest.licence
    assert Folders.limits in (folder / "card.md").read_text(encoding="utf-8")
    assert manifest.commit == read_facts(run)["commit"]
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.fp16.onnx", "manifest.json", "card.md"}


def test_the_released_graph_answers_as_torch_does_for_any_batch_and_colour(released: tuple[Path, Path, Path]) -> None:
    root, run, folder = released
    crops, _, _ = evaluate.read_split("folders", root, "valid", {})
    network, state = load_best(run)
    session = evaluate.open_graph(folder / "model.onnx")
    for batch in (crops[:1], crops[:5], export.coloured(crops)):
        with torch.no_grad():
            expected = select_head(network(torch.from_numpy(batch)), state["head"]).softmax(-1).numpy()
        found = torch.from_numpy(evaluate.run_graph(session, batch)).softmax(-1).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_released_graph_also_tells_where_it_looked(released: tuple[Path, Path, Path]) -> None:
    root, run, folder = released
    explain = load_artefact(folder).explain
    assert explain is not None
    assert explain.shape == (-1, 7, 7)
    crops, _, _ = evaluate.read_split("folders", root, "valid", {})
    network, state = load_best(run)
    with torch.no_grad(), recorded_attention(network.backbone) as attentions:
        network(torch.from_numpy(crops[:3]))
    (found,) = evaluate.open_graph(folder / "model.onnx").run([explain.name], {"crops": crops[:3]})
    np.testing.assert_allclose(found, rollout(attentions, head=state["head"]).numpy(), atol=1e-4)
    np.testing.assert_allclose(found.sum(axis=(1, 2)), 1.0, atol=1e-4)


def test_training_sees_the_luminance_of_the_crop_that_serving_sees(released: tuple[Path, Path, Path]) -> None:
    root, run, _ = released
    source = small_recipe(root).data.valid
    cached = load_faces(source, colour="luminance", cache_dir=root.parent / "cache")
    crops, labels, _ = evaluate.read_split("folders", root, "valid", {})
    network, _ = load_best(run)
    assert np.array_equal(cached.labels, labels)
    with torch.no_grad():
        trained = network.preprocess(torch.from_numpy(np.array(cached.crops)))
        served = network.preprocess(torch.from_numpy(crops))
    torch.testing.assert_close(trained, served, atol=0.02, rtol=0)  # the cache rounds luminance to whole levels


def test_evaluate_prints_and_writes_every_figure(
    released: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _, folder = released
    out = tmp_path / "figures.json"
    command = ["--artefact", str(folder), "--data", f"folders={root}", "--split", "valid", "--json", str(out)]
    assert evaluate.main(command) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["faces"] == sum(map(sum, figures["confusion"])) == 28
    hits = sum(figures["confusion"][index][index] for index in range(7))
    assert figures["accuracy"]["value"] == pytest.approx(hits / 28)
    assert figures["accuracy"]["low"] <= figures["accuracy"]["value"] <= figures["accuracy"]["high"]
    assert set(figures["recall"]) == set(LABELS)
    assert "mean class accuracy" in capsys.readouterr().out


def test_evaluate_refuses_an_artefact_whose_bytes_changed(
    released: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _, folder = released
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-1] + b"x")
    assert evaluate.main(["--artefact", str(copy), "--data", f"folders={root}"]) == 1
    assert "model.onnx has sha256" in capsys.readouterr().err


def test_a_graph_that_differs_from_torch_is_not_released(
    released: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, _ = released
    truth = export.torch_logits
    monkeypatch.setattr(export, "torch_logits", lambda *given: truth(*given) + np.eye(7, dtype=np.float32)[0] * 0.01)
    with pytest.raises(export.ExportError, match="differs from torch"):
        export.export(run, "wrong", artefacts_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fp16_labels_that_differ_are_not_released() -> None:
    logits = np.eye(7)[np.arange(1000) % 7]
    assert export.check_fp16(logits, logits) == 1.0
    with pytest.raises(export.ExportError, match=r"99\.80 %"):
        export.check_fp16(logits, np.r_[logits[:998], np.roll(logits[998:], 1, axis=1)])


def test_a_released_artefact_is_not_overwritten(released: tuple[Path, Path, Path]) -> None:
    _, run, folder = released
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(FileExistsError, match="choose another --tag"):
        export.export(run, "drawn", artefacts_dir=folder.parent)
    assert (folder / "manifest.json").read_bytes() == before


@pytest.mark.filterwarnings("ignore:.*overflow.*:RuntimeWarning")
def test_a_loss_that_is_no_number_stops_the_run_and_names_the_faces(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    recipe = small_recipe(root, optim={"learning_rate": 1e30, "warmup_epochs": 0, "clip_grad_norm": None})
    with pytest.raises(TrainingDiverged, match=r"folders/train/"):
        train(recipe, tmp_path / "run")


def test_raf_db_trains_on_a_stratified_validation_split_and_leaves_test_sealed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_raf_db(tmp_path / "rafdb", train=dict.fromkeys(LABELS, 20), originals=False)
    source = {"kind": "raf_db", "root": str(root)}
    data = {
        "train": [source | {"split": "train"}],
        "valid": source | {"split": "valid"},
        "cache_dir": str(tmp_path / "cache"),
    }
    with caplog.at_level(logging.INFO):
        run = train(small_recipe(root, data=data, epochs=1), tmp_path / "run")
    folder = export.export(run, "drawn", artefacts_dir=tmp_path / "artefacts")
    assert [entry.split for entry in load_artefact(folder).metrics] == ["valid"]
    assert not list((tmp_path / "cache").glob("*test*"))
