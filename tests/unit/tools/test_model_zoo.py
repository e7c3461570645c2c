"""Table of released models from their manifests."""

from pathlib import Path

import pytest

from mien.models.manifest import load_artifact
from tools.model_zoo import main


def test_each_artifact_is_a_row_with_its_metrics(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = load_artifact(artifact)
    assert main(["--artifacts", str(artifact.parent), "--milliseconds", "--threads", "1"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| [")]
    assert len(rows) == 1
    assert f"[{manifest.name}]" in rows[0]
    assert f"{manifest.parameters / 1e6:.1f} M" in rows[0]
    assert float(rows[0].split("|")[-2]) > 0
