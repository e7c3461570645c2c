"""A RAF-DB recipe from images to test metrics, on a drawn data set, with one epoch, one block and no downloads."""

import json
from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.models.manifest import load_artifact
from mien.training import evaluate, export
from mien.training.config import read_recipe
from mien.training.train import train
from tests.data_sets import make_raf_db
from tests.integration.training.conftest import one_graph

RECIPES = Path(__file__).parents[3] / "training" / "recipes"


@pytest.mark.timeout(600)  # an export; a machine that trains meanwhile takes its time
def test_a_raf_db_student_is_trained_released_and_scored(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path / "raf_db", train=dict.fromkeys(LABELS, 20), originals=False)
    small = [
        "epochs=1", "batch_size=42", "optim.warmup_epochs=0.5", "model.pretrained=false",
        "runtime.workers=0", "runtime.device=cpu", "runtime.precision=fp32", "runtime.log_every_steps=1",
        # far enough from the first weights that no two classes tie, which half precision would then decide otherwise
        "optim.learning_rate=1e-3", "optim.ema_decay=0.5",
        f"data.cache_dir={tmp_path / 'cache'}", f"data.valid.root={root}", f"data.train.0.root={root}",
    ]  # fmt: skip
    teacher = train(
        read_recipe(RECIPES / "rafdb_teacher.yaml", [*small, "model.name=test_resnet"]), tmp_path / "teacher"
    )
    student = read_recipe(
        RECIPES / "rafdb_deit_tiny.yaml",
        [*small, f"distillation.teachers=[{teacher}]", "model.options.depth=1", "model.options.embed_dim=48"],
    )
    run = train(student, tmp_path / "student")

    with one_graph():
        folder = export.export([run], "drawn", artifacts_dir=tmp_path / "artifacts")
    manifest = load_artifact(folder)
    assert (manifest.name, manifest.color) == (f"{student.model.arch}.drawn", "RGB")
    assert {entry.split for entry in manifest.metrics} == {"valid"}
    assert not list((tmp_path / "cache").glob("*test*"))
    assert "non-commercial research" in manifest.license

    figures = tmp_path / "figures.json"
    test = ["--artifact", str(folder), "--data", f"raf_db={root}", "--split", "test", "--json", str(figures)]
    assert evaluate.main(test) == 0
    assert json.loads(figures.read_text(encoding="utf-8"))["evaluations"][0]["faces"] > 0
