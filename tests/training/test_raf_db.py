"""RAF-DB from the download to the number of the paper, on drawn faces."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.training.cli import main
from mien.training.run import LAST
from tests.support import ROOT, environment_of
from tests.support.data_sets import make_raf_db
from tests.support.serving import serving
from tests.support.training import losses, metric_lines

RECIPES = ROOT / "training" / "recipes"
TRAIN = dict.fromkeys(LABELS, 14) | {"happiness": 30}
TEST = dict.fromkeys(LABELS, 4)
SMALL = [
    "epochs=2", "batch_size=16", "runtime.device=cpu", "runtime.precision=fp32", "runtime.workers=0",
    "runtime.threads=1", "runtime.log_every_steps=1", "runtime.checkpoint_every_steps=2", "model.pretrained=false",
    "optim.warmup_epochs=0.2", "augment.color_jitter=0.3",
    "model.drop_rate=0.2", "mix.mixup=0.8", "mix.cutmix=1.0",
]  # fmt: skip
TINY_CNN = ["model.name=test_resnet", "model.img_size=28"]
TINY_DEIT = ["model.img_size=56", "model.options={embed_dim: 16, depth: 2, num_heads: 2, patch_px: 8}"]


def mien(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the data sets, beside the current folder."""
    monkeypatch.setenv("MIEN_DATA_DIR", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sets"


def test_teacher_student_test_split_release_service_and_labeling(
    sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_raf_db(sets / "raf_db", TRAIN, TEST)
    data, artifacts = f"raf_db={sets / 'raf_db'}", tmp_path / "artifacts"
    mien("train", RECIPES / "rafdb_teacher.yaml", *SMALL, *TINY_CNN)
    student = ["train", str(RECIPES / "rafdb_deit.yaml"), *SMALL, *TINY_DEIT]
    mien(*student, "--out", "runs/whole")
    killed = subprocess.Popen([sys.executable, "-m", "mien", *student], env=environment_of(data_dir=sets))
    while not Path("runs/rafdb_deit", LAST).exists():
        assert killed.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    mien(*student)
    whole, resumed = Path("runs/whole"), Path("runs/rafdb_deit")
    assert losses(whole) == losses(resumed)
    for name in ("train_loss", "valid_negative_log_likelihood"):  # of the epoch that was stopped, and of the average
        values = [[line[name] for line in metric_lines(run) if name in line] for run in (whole, resumed)]
        assert values[0] == values[1]
    capsys.readouterr()
    mien("evaluate", "runs/whole", "runs/rafdb_deit", "--data", data, "--split", "test", "--json", "test.json")
    printed = capsys.readouterr().out
    assert "raf_db, test split, 28 faces" in printed
    scores = json.loads(Path("test.json").read_text())["scores"]
    accuracies = [of["accuracy"]["value"] for of in scores]
    assert accuracies[0] == accuracies[1]
    assert f" {100 * accuracies[0]:.2f} ± 0.00 " in printed
    mien("train", *student[1:], "--all", "--out", "runs/all")
    mien("export", "runs/rafdb_deit", "--tag", "mine", "--artifacts", artifacts)
    released = artifacts / "deit_tiny_112.mine"
    assert main(["export", "runs/all", "--tag", "all", "--artifacts", str(artifacts)]) == 1
    assert "Give --calibrated-by" in capsys.readouterr().err
    mien("export", "runs/all", "--tag", "all", "--artifacts", artifacts, "--calibrated-by", released)
    manifests = [
        json.loads((artifacts / f"deit_tiny_112.{tag}" / "manifest.json").read_text()) for tag in ("mine", "all")
    ]
    for name in ("temperature", "prior_correction", "confidence_threshold"):
        assert manifests[0][name] == manifests[1][name]
    assert "those of deit_tiny_112.mine" in (artifacts / "deit_tiny_112.all" / "card.md").read_text(encoding="utf-8")
    mien("evaluate", released, "--data", data, "--split", "test")
    assert "balanced" in capsys.readouterr().out
    mien("quantize", released, "--data", data)
    command = [sys.executable, "-m", "mien", "label", ROOT / "samples" / "photos", "--model", released]
    subprocess.run([*command, "--out", tmp_path / "out"], env=environment_of(), check=True, capture_output=True)
    assert released.name in Path("out", "labels.csv").read_text(encoding="utf-8")
    with serving(tmp_path / "service", released) as server:
        answer = server.post((ROOT / "samples" / "photos" / "astronaut.jpg").read_bytes()).json()
    assert answer["images"][0]["faces"][0]["label"] in LABELS
    assert answer["model"] == released.name
