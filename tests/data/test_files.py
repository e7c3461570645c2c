"""Files of data sets in folders and zips, and atomic writes."""

import pickle
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mien.data.atomic import atomic_file, write_atomic
from mien.data.tree import DatasetError, FileTree, FolderTree, ZipTree, open_tree
from tests.support import ROOT

FILES = {"a/one.txt": b"1", "a/b/two.txt": b"22", "three.txt": b"333"}


LITTER = {".DS_Store": b"", "__MACOSX/a/one.txt": b"", "a/.hidden": b""}


def _folder(root: Path) -> Path:
    for name, content in (FILES | LITTER).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def _zip(path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (FILES | LITTER).items():
            archive.writestr(name, content)
    return path


def _trees(folder: Path) -> dict[str, FileTree]:
    _zip(folder / "alone" / "set.zip")
    (folder / "alone" / "LICENSE.txt").write_text("free", encoding="utf-8")
    return {
        "folder": open_tree(_folder(folder / "unpacked")),
        "zip": open_tree(_zip(folder / "set.zip", zipfile.ZIP_DEFLATED)),
        "folder of a zip": open_tree(folder / "alone"),
    }


@pytest.mark.parametrize("kind", ["folder", "zip", "folder of a zip"])
def test_names_and_bytes_are_the_same_from_folder_and_zip_and_a_missing_file_is_named(
    tmp_path: Path, kind: str
) -> None:
    tree = _trees(tmp_path)[kind]
    assert tree.names == tuple(sorted(FILES))
    assert {name: tree.read(name) for name in tree.names} == FILES
    assert "three.txt" in tree
    assert "four.txt" not in tree
    with pytest.raises(DatasetError, match=r"four\.txt"):
        tree.read("four.txt")


def test_a_folder_with_a_zip_beside_unpacked_folders_is_a_folder(tmp_path: Path) -> None:
    _zip(_folder(tmp_path) / "set.zip")
    assert isinstance(open_tree(tmp_path), FolderTree)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere"):
        open_tree(tmp_path / "nowhere")
    entry, cut = _zip(tmp_path / "entry.zip"), _zip(tmp_path / "cut.zip")
    entry.write_bytes(entry.read_bytes().replace(b"333", b"334", 1))
    with pytest.raises(DatasetError, match=r"three\.txt.*CRC"):
        open_tree(entry).read("three.txt")
    cut.write_bytes(cut.read_bytes()[:60])
    with pytest.raises(DatasetError, match="as a zip"):
        _ = open_tree(cut).names


def test_a_name_in_another_encoding_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderTree, "_list", lambda _: ["a/one.png", "a/caf\udce9.png"])  # b"caf\xe9.png" on a disk
    with pytest.raises(DatasetError, match=r"a/caf\\xe9\.png.*not UTF-8.*Rename"):
        _ = FolderTree(tmp_path).names


def test_a_folder_that_links_to_itself_is_listed_once(tmp_path: Path) -> None:
    root = _folder(tmp_path / "set")
    (root / "a" / "again").symlink_to(root)
    assert open_tree(root).names == tuple(sorted(FILES))


def test_a_marker_is_found_below_the_fewest_outer_folders(tmp_path: Path) -> None:
    for folder, name in (("x/y", "label.csv"), ("z", "label.csv"), ("", "my_label.csv")):
        write_atomic(tmp_path / folder / name, "")
    assert FolderTree(tmp_path).prefix_of("label.csv") == "z/"
    assert FolderTree(tmp_path).prefix_of("other.csv") is None


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


def test_nothing_appears_under_the_name_before_the_block_ends_and_missing_folders_are_created(tmp_path: Path) -> None:
    target, staging = tmp_path / "deep" / "er" / "x.jpg", tmp_path / "staging"
    with atomic_file(target, staging=staging, durable=False) as file:
        file.write(b"pixels")
        assert not target.exists()
        assert [path.suffix for path in staging.iterdir()] == [".jpg"]
    assert target.read_bytes() == b"pixels"
    assert not list(staging.iterdir())


def test_a_name_of_the_longest_length_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("a" * 251 + ".jpg")
    write_atomic(target, b"x")
    assert target.read_bytes() == b"x"
