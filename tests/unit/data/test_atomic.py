"""Atomic writes: a file appears completely or not at all."""

from pathlib import Path

import pytest

from mien.data.atomic import atomic_file, atomic_path, write_atomic


def test_a_failure_while_writing_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    write_atomic(target, "earlier")
    with pytest.raises(TypeError), atomic_file(target, "w") as file:
        file.writelines(["half of the new", None])
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]


def test_nothing_appears_under_the_name_before_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "new" / "graph.onnx"
    with atomic_path(target) as part:
        part.write_bytes(b"whole")
        assert not target.exists()
        assert part.suffix == ".onnx"
    assert target.read_bytes() == b"whole"


def test_temporary_files_are_in_the_staging_folder_and_missing_folders_are_created(tmp_path: Path) -> None:
    target, staging = tmp_path / "deep" / "er" / "x.jpg", tmp_path / "staging"
    with atomic_file(target, staging=staging, durable=False) as file:
        file.write(b"pixels")
        assert len(list(staging.iterdir())) == 1
    assert target.read_bytes() == b"pixels"
    assert not list(staging.iterdir())


def test_a_name_of_the_longest_length_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("a" * 251 + ".jpg")
    write_atomic(target, b"x")
    assert target.read_bytes() == b"x"
