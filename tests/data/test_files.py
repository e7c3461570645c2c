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


def test_names_and_bytes_are_the_same_in_a_folder_a_zip_and_a_zip_in_either(tmp_path: Path) -> None:
    folder, album = tmp_path / "folder", tmp_path / "album"
    for name, content in (FILES | LITTER).items():
        write_atomic(folder / name, content)
    (folder / "a" / "again").symlink_to(folder)  # is listed once
    inner = _zip(album / "Image" / "aligned.zip")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(inner, "Image/aligned.zip")
    for root in (folder, inner, album, tmp_path / "outer.zip"):
        prefix = "" if root in (folder, inner) else "Image/aligned/"
        contents = {name: read_file(file) for name, file in files_of(root).items()}
        assert list(contents.items()) == [(prefix + name, FILES[name]) for name in sorted(FILES)]
    write_atomic(album / "Image" / "aligned" / "three.txt", b"unpacked")
    assert read_file(files_of(album)["Image/aligned/three.txt"]) == b"unpacked"
    inner.write_bytes(inner.read_bytes().replace(b"333", b"334", 1))
    with pytest.raises(DatasetError, match=r"three\.txt.*CRC"):
        read_file(files_of(inner)["three.txt"])
    inner.write_bytes(inner.read_bytes()[:60])
    for root, problem in ((album, "as a zip"), (tmp_path / "nothing", "expected a folder or a zip")):
        with pytest.raises(DatasetError, match=problem):
            files_of(root)


def test_a_failure_while_writing_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    write_atomic(target, "earlier")
    with pytest.raises(TypeError), atomic_file(target, "w") as file:
        file.writelines(["half of the new", None])
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]
