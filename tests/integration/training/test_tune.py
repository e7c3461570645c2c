"""Fine-tuning of the released model on class folders improves its accuracy on them."""

from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.models.manifest import default_artifact_dir
from mien.training.compare import main as compare
from mien.training.config import read_recipe
from mien.training.evaluate import open_graph, run_graph
from mien.training.export import export
from mien.training.faces import read_faces
from mien.training.loop.run_folder import load_best
from mien.training.train import train
from tests.data_sets import make_folders

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "training" / "recipes" / "folders_hybrid_tiny.yaml"
GUIDE = ROOT / "docs" / "training.md"


def test_the_release_can_be_fine_tuned_on_new_faces_and_both_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 25)})
    released = default_artifact_dir()
    roots = [f"data.train.0.root={root}", f"data.valid.root={root}", f"data.cache_dir={tmp_path / 'cache'}"]
    source = [f"model.init_from={released}", f"distillation.teachers=[{released}]"]
    budget = ["epochs=3", "batch_size=16", "optim.learning_rate=5e-4", "optim.ema_decay=0.8", "runtime.workers=0"]
    run = train(read_recipe(RECIPE, [*roots, *source, *budget]), tmp_path / "run")
    tuned = load_best(run)[1]["accuracy"]

    faces = read_faces("folders", root, "valid", {"valid_share": 0.2})
    before = (run_graph(open_graph(released / "model.onnx"), faces.crops).argmax(axis=1) == faces.labels).mean()
    assert len(faces) >= 14
    assert tuned > before + 0.1

    mine = export([run], "mine", artifacts_dir=tmp_path / "artifacts")
    assert compare([str(released), str(mine), "--prior", "natural", "--data", f"folders={root}", "--option",
                    "valid_share=0.2"]) == 0  # fmt: skip
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"accuracy {100 * before:.2f} {100 * tuned:.2f} {100 * (tuned - before):+.2f}" in shown


def test_class_folders_with_contempt_are_tuned_without_a_teacher() -> None:
    eight = ["data.train.0.options.classes=8", "data.valid.options.classes=8"]
    recipe = read_recipe(RECIPE, [*eight, "distillation.mode=none", "distillation.teachers=[]"])
    assert recipe.data.valid.options == {"valid_share": 0.2, "classes": 8}
    assert " ".join(eight) in GUIDE.read_text(encoding="utf-8")
