"""RAF-DB recipes from images to report, on a drawn data set, with one epoch, few blocks and no downloads."""

import json
from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.models.manifest import load_artifact
from mien.training import evaluate, export
from mien.training.config import read_recipe
from mien.training.report.command import main as report
from mien.training.train import train
from tests.data_sets import make_raf_db

RECIPES = Path(__file__).parents[3] / "training" / "recipes"
STUDENTS = ["rafdb_deit_tiny", "rafdb_hybrid_tiny"]


def reduced(root: Path, cache: Path) -> list[str]:
    return [
        "epochs=1", "batch_size=42", "optim.warmup_epochs=0.5", "model.pretrained=false",
        "runtime.workers=0", "runtime.device=cpu", "runtime.precision=fp32", "runtime.log_every_steps=1",
        # far enough from the first weights that no two classes tie, which half precision would then decide otherwise
        "optim.learning_rate=1e-3", "optim.ema_decay=0.5",
        f"data.cache_dir={cache}", f"data.valid.root={root}", f"data.train.0.root={root}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The data set, overrides that make recipes small, and a trained teacher."""
    folder = tmp_path_factory.mktemp("rafdb")
    root = make_raf_db(folder / "raf_db", train=dict.fromkeys(LABELS, 20), originals=False)
    small = reduced(root, folder / "cache")
    teacher = train(read_recipe(RECIPES / "rafdb_teacher.yaml", [*small, "model.name=resnet10t"]), folder / "teacher")
    return root, [*small, f"distillation.teachers=[{teacher}]", "model.options.depth=1"]


@pytest.mark.timeout(600)  # two exports a student; a machine that trains meanwhile takes its time
@pytest.mark.parametrize("name", STUDENTS)
def test_a_raf_db_student_is_trained_released_scored_and_reported(
    name: str, taught: tuple[Path, list[str]], tmp_path: Path
) -> None:
    root, changes = taught
    path = RECIPES / f"{name}.yaml"
    if read_recipe(path).model.init_from is not None:
        changes = [*changes, f"model.init_from={_started_on_gray_faces(root, changes, tmp_path)}"]
    run = train(read_recipe(path, changes), tmp_path / name)

    folder = export.export([run], "drawn", artifacts_dir=tmp_path / "artifacts")
    manifest = load_artifact(folder)
    assert manifest.name == f"{read_recipe(path).model.arch}.drawn"
    assert manifest.color == read_recipe(path).model.color
    assert {entry.split for entry in manifest.metrics} == {"valid"}
    assert not list((root.parent / "cache").glob("*test*"))
    assert "non-commercial research" in manifest.license

    figures = tmp_path / "figures.json"
    test = ["--artifact", str(folder), "--data", f"raf_db={root}", "--split", "test", "--json", str(figures)]
    assert evaluate.main(test) == 0
    assert json.loads(figures.read_text(encoding="utf-8"))["evaluations"][0]["faces"] > 0

    page = tmp_path / "report.html"
    assert report([str(run), "--out", str(page)]) == 0
    assert f"{name}" in page.read_text(encoding="utf-8")


def _started_on_gray_faces(root: Path, changes: list[str], folder: Path) -> Path:
    """A run of the FERPlus recipe's network on the drawn data set, for `model.init_from`."""
    drawn = [f"data.train=[{{kind: raf_db, split: train, root: {root}}}]", "data.valid.kind=raf_db"]
    return train(read_recipe(RECIPES / "ferplus_hybrid_tiny.yaml", [*drawn, *changes]), folder / "start")
