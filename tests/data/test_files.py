"""Files of data sets in folders and zips, and atomic writes."""

import zipfile
from pathlib import Path

import pytest

from mien.data.atomic import atomic_file, write_atomic
from mien.data.errors import DatasetError
from mien.data.tree import files_of, read_file

FILES = {"a/one.txt": b"1", "a/b/two.txt": b"22", "three.txt": b"333"}
LITTER = {".DS_Store": b"", "__MACOSX/a/one.txt": b"", "a/.hidden": b""}


def _zip(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (FILES | LITTER).items():
            archive.writestr(name, content)
    return path


def test_names_and_bytes_are_the_same_from_folder_and_zip(tmp_path: Path) -> None:
    folder, alone = tmp_path / "folder", tmp_path / "alone"
    for name, content in (FILES | LITTER).items():
        write_atomic(folder / name, content)
    (folder / "a" / "again").symlink_to(folder)  # is listed once
    _zip(alone / "set.zip")
    (alone / "LICENSE.txt").write_text("free", encoding="utf-8")
    for files in map(files_of, (folder, alone, alone / "set.zip")):
        assert list(files) == sorted(FILES)
        assert {name: read_file(file) for name, file in files.items()} == FILES


def test_inner_archives_are_folders_in_a_folder_and_in_a_zip(tmp_path: Path) -> None:
    inner = _zip(tmp_path / "folder" / "Image" / "aligned.zip")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.write(inner, "Image/aligned.zip")
    for files in map(files_of, (tmp_path / "folder", tmp_path / "set.zip")):
        contents = {name: read_file(file) for name, file in files.items()}
        assert contents == {f"Image/aligned/{name}": content for name, content in FILES.items()}
    write_atomic(tmp_path / "folder" / "Image" / "aligned" / "three.txt", b"unpacked")
    assert read_file(files_of(tmp_path / "folder")["Image/aligned/three.txt"]) == b"unpacked"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    entry, cut = _zip(tmp_path / "entry.zip"), _zip(tmp_path / "cut.zip")
    entry.write_bytes(entry.read_bytes().replace(b"333", b"334", 1))
    with pytest.raises(DatasetError, match=r"three\.txt.*CRC"):
        read_file(files_of(entry)["three.txt"])
    cut.write_bytes(cut.read_bytes()[:60])
    with pytest.raises(DatasetError, match="as a zip"):
        files_of(cut)
    with pytest.raises(DatasetError, match="expected a folder or a zip"):
        files_of(tmp_path / "nothing")


def test_a_failure_while_writing_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    write_atomic(target, "earlier")
    with pytest.raises(TypeError), atomic_file(target, "w") as file:
        file.writelines(["half of the new", None])
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]
