"""RAF-DB from the download to the number of the paper, on drawn faces."""

import json
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import LABELS
from mien.models.manifest import read_manifest
from mien.training.cli import main
from tests.support import ROOT
from tests.support.data_sets import make_raf_db

RECIPES = ROOT / "training" / "recipes"
TRAIN = dict.fromkeys(LABELS, 14) | {"happiness": 30}
TEST = dict.fromkeys(LABELS, 4)
SMALL = [
    "epochs=2", "batch_size=16", "runtime.device=cpu", "runtime.precision=fp32", "runtime.workers=0",
    "runtime.threads=1", "runtime.log_every_steps=1", "runtime.checkpoint_every_steps=2", "model.pretrained=false",
    "optim.warmup_epochs=0.2", "augment.color_jitter=0.3",
]  # fmt: skip
TINY_CNN = ["model.name=test_resnet", "model.img_size=28"]
TINY_DEIT = ["model.img_size=56", "model.options={embed_dim: 16, depth: 2, num_heads: 2, patch_px: 8}"]


def mien(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def test_teacher_student_test_split_release_and_quantization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIEN_DATA_DIR", "sets")
    data, artifacts = f"raf_db={make_raf_db(Path('sets', 'raf_db'), TRAIN, TEST)}", Path("artifacts")
    student = [RECIPES / "rafdb_deit.yaml", *SMALL, *TINY_DEIT]
    mien("train", RECIPES / "rafdb_teacher.yaml", *SMALL, *TINY_CNN)
    mien("train", *student)
    capsys.readouterr()
    mien("evaluate", "runs/rafdb_teacher", "runs/rafdb_deit", "--data", data, "--split", "test", "--json", "test.json")
    printed = capsys.readouterr().out
    assert "raf_db, test split, 28 faces" in printed
    accuracies = [100 * of["accuracy"]["value"] for of in json.loads(Path("test.json").read_text())["scores"]]
    assert f" {np.mean(accuracies):.2f} ± {np.std(accuracies, ddof=1):.2f} " in printed
    mien("train", *student, "--all", "--out", "runs/all")
    mien("export", "runs/rafdb_deit", "--tag", "mine", "--artifacts", artifacts)
    released = artifacts / "deit_tiny_112.mine"
    assert main(["export", "runs/all", "--tag", "all", "--artifacts", str(artifacts)]) == 1
    assert "Give --calibrated-by" in capsys.readouterr().err
    mien("export", "runs/all", "--tag", "all", "--artifacts", artifacts, "--calibrated-by", released)
    other = artifacts / "deit_tiny_112.all"
    for name in ("temperature", "prior_correction", "confidence_threshold"):
        assert getattr(read_manifest(other), name) == getattr(read_manifest(released), name)
    assert "those of deit_tiny_112.mine" in (other / "card.md").read_text(encoding="utf-8")
    mien("evaluate", released, "--data", data, "--split", "test")
    assert "balanced" in capsys.readouterr().out
    mien("quantize", released, "--data", data)
