"""Resumed runs keep the measured precision of their start."""

from pathlib import Path

import pytest

from mien.app.inference import classifier as classifiers
from mien.app.settings import Settings
from tests.support import tiny_artifact
from tests.support.albums import label_folder, rows_of, write_photos


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tiny_artifact(tmp_path_factory.mktemp("artifacts") / "tiny.test", precisions=("fp32", "fp16", "int8"))
    return Settings(model=folder, detector="builtin", device="cpu")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", count=3)


def run(photos: Path, settings: Settings, *, new_run: bool = False, limit: int | None = None) -> str:
    """Label the remaining inputs; returns the precision of all rows."""
    label_folder(photos, photos.parent / "out", settings, "csv", limit=limit, new_run=new_run)
    (precision,) = {row["precision"] for row in rows_of(photos.parent / "out")}
    return precision


def measure(monkeypatch: pytest.MonkeyPatch, gain: float, *, instructions: bool = True) -> None:
    monkeypatch.setattr(classifiers, "has_int8_instructions", lambda: instructions)
    monkeypatch.setattr(classifiers, "speedup", lambda *_: gain)


@pytest.mark.parametrize(("first", "then", "expected"), [(2.0, 1.0, "int8"), (1.0, 2.0, "fp32")])
def test_a_resumed_run_does_not_change_its_precision(
    photos: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, first: float, then: float, expected: str
) -> None:
    measure(monkeypatch, first)
    assert run(photos, settings, limit=1) == expected
    measure(monkeypatch, then, instructions=then > 1)
    assert run(photos, settings) == expected
    assert run(photos, settings, new_run=True) != expected
