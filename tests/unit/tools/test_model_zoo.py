"""Table of released models from their manifests."""

from pathlib import Path

import pytest

from mien.models.manifest import artifact_dir, load_artifact
from tools.model_zoo import main, row


def test_each_artifact_is_a_row_with_its_metrics(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = load_artifact(artifact)
    assert main(["--artifacts", str(artifact.parent), "--milliseconds", "--threads", "1"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| [")]
    assert len(rows) == 1
    assert f"[{manifest.name}]" in rows[0]
    assert f"{manifest.parameters / 1e6:.1f} M" in rows[0]
    assert float(rows[0].split("|")[-2]) > 0


def test_a_mean_of_networks_names_the_recipe_of_each() -> None:
    recipes = row(artifact_dir("accurate"), threads=None)[1]
    teacher = "`ferplus_teacher_mobilefacenet`"
    assert recipes == f"`ferplus_hybrid_tiny_3`, {teacher}, {teacher[:-1]}_adjusted`"
