"""Names and locks of files on Windows, where `.github/workflows/ci.yml` labels and serves."""

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mien.app.labeling import copies, inputs, report
from mien.app.labeling.options import LabelOptions
from mien.data import atomic


@pytest.mark.parametrize("name", ["con.jpg", "nul.tar.png", "12:30.jpg", "..\\..\\up.jpg"])
def test_a_written_name_is_valid_on_windows_and_unique(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_WINDOWS", True)
    for folder in ("", "holiday. /", "com3/", "C:/"):
        written = copies.annotated_name(folder + name, -1).split("/")
        assert not any(set(part) & set('<>:"\\|?*') or part.endswith((".", " ")) for part in written)
        assert not {part.split(".")[0].lower() for part in written} & {"con", "nul", "com3"}
        assert copies.annotated_name(folder + name, -1) != copies.annotated_name(folder + f"_{name}", -1)


def test_a_file_that_is_open_elsewhere_is_replaced_once_it_is_closed_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, replace, refused = tmp_path / "labels.csv", Path.replace, PermissionError(13, "Access is denied")
    monkeypatch.setattr(atomic, "_RETRY_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=refused))
    with pytest.raises(PermissionError, match="open in another program") as named:
        atomic.write_atomic(target, "new")
    assert named.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []
    closed = Mock(side_effect=[refused, refused, None])
    monkeypatch.setattr(Path, "replace", lambda part, to: (closed(), replace(part, to)))
    atomic.write_atomic(target, "new")
    assert target.read_text(encoding="utf-8") == "new"


def test_names_have_forward_slashes_and_are_long_without_links_on_different_drives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as windows:
        windows.setattr(inputs, "os", SimpleNamespace(sep="\\", fsencode=os.fsencode))
        assert inputs.printable("photos\\xab\\1.jpg") == "photos/xab/1.jpg"
    monkeypatch.setattr(os.path, "commonpath", Mock(side_effect=ValueError("Paths don't have the same drive")))
    assert report.relative_link(b"D:\\photos\\a.jpg", tmp_path) == ""
    for folder in ("one", "two"):
        (tmp_path / folder / "photos").mkdir(parents=True)
    given = [str(tmp_path / folder / "photos") for folder in ("one", "two")]
    assert list(inputs.roots(LabelOptions(inputs=given, out=tmp_path / "out"), {}).values()) == given
