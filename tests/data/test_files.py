"""Files of data sets in folders and zips, and atomic writes."""

import pickle
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mien.data.atomic import atomic_file, write_atomic
from mien.data.tree import DatasetError, ZipTree, open_tree
from tests.support import ROOT

FILES = {"a/one.txt": b"1", "a/b/two.txt": b"22", "three.txt": b"333"}
LITTER = {".DS_Store": b"", "__MACOSX/a/one.txt": b"", "a/.hidden": b""}


def _zip(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (FILES | LITTER).items():
            archive.writestr(name, content)
    return path


def test_names_and_bytes_are_the_same_from_folder_and_zip_and_a_missing_file_is_named(tmp_path: Path) -> None:
    folder, alone = tmp_path / "folder", tmp_path / "alone"
    for name, content in (FILES | LITTER).items():
        write_atomic(folder / name, content)
    (folder / "a" / "again").symlink_to(folder)  # is listed once
    _zip(alone / "set.zip")
    (alone / "LICENSE.txt").write_text("free", encoding="utf-8")
    for tree in map(open_tree, (folder, alone, alone / "set.zip")):
        assert tree.names == tuple(sorted(FILES))
        assert {name: tree.read(name) for name in tree.names} == FILES
        assert "four.txt" not in tree
        with pytest.raises(DatasetError, match=r"four\.txt"):
            tree.read("four.txt")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    entry, cut = _zip(tmp_path / "entry.zip"), _zip(tmp_path / "cut.zip")
    entry.write_bytes(entry.read_bytes().replace(b"333", b"334", 1))
    with pytest.raises(DatasetError, match=r"three\.txt.*CRC"):
        open_tree(entry).read("three.txt")
    cut.write_bytes(cut.read_bytes()[:60])
    with pytest.raises(DatasetError, match="as a zip"):
        _ = open_tree(cut).names


def _many(path: Path) -> dict[str, bytes]:
    contents = {f"{number:04}": bytes([number % 256]) * (number * 7 % 5000) for number in range(300)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return contents


def _wrong_reads(tree: ZipTree, contents: dict[str, bytes]) -> int:
    with ThreadPoolExecutor(4) as pool:
        return sum(found != contents[name] for name, found in zip(contents, pool.map(tree.read, contents), strict=True))


FORKED = """
import multiprocessing, sys
from pathlib import Path
from tests.data.test_files import ZipTree, _many, _wrong_reads

contents = _many(Path(sys.argv[1]))
tree = ZipTree(Path(sys.argv[1]))
assert _wrong_reads(tree, contents) == 0  # opened before the fork, as a data loader's parent does
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.starmap(_wrong_reads, [(tree, contents)] * 6) == [0] * 6
"""


def test_an_open_zip_is_read_by_threads_of_forked_processes_at_once_and_can_be_pickled(tmp_path: Path) -> None:
    """Forked from a process of its own: this one has threads of other tests, whose locks a fork may copy."""
    path = tmp_path / "set.zip"
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, path], cwd=ROOT, check=True, timeout=120)
    contents = _many(path)
    assert _wrong_reads(pickle.loads(pickle.dumps(ZipTree(path))), contents) == 0  # noqa: S301 - our own bytes


def test_a_failure_while_writing_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    write_atomic(target, "earlier")
    with pytest.raises(TypeError), atomic_file(target, "w") as file:
        file.writelines(["half of the new", None])
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]
