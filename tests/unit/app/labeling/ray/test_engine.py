"""What the driver of a cluster gives to its workers."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.ray import engine
from mien.app.settings import Settings
from tests.albums import write_photos


def test_workers_get_full_paths_because_their_current_folder_is_another(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Settings] = []
    monkeypatch.setattr(engine, "connected", lambda *_: nullcontext())
    monkeypatch.setattr(engine, "_label", lambda cluster, *_: given.append(cluster.settings))
    monkeypatch.chdir(artifact.parent)
    options = LabelOptions(inputs=[str(write_photos(tmp_path / "photos", count=1))], out=tmp_path / "out")
    for model in (f"./{artifact.name}", "fast"):
        engine.label_on_ray(options, Settings(model=model, models_dir=Path("yunet")), Reporter())
    assert [settings.model for settings in given] == [artifact, "fast"]
    assert {settings.models_dir for settings in given} == {artifact.parent / "yunet"}
