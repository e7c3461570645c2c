"""Atomic commits of partitions, tested without a cluster."""

from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from mien.app.labeling.columns import face_rows, file_rows
from mien.app.labeling.facts import OtherRun
from mien.app.labeling.files import FILES_DIR, LABELS_DIR, DiskFull, ForeignFile, LabelingError
from mien.app.labeling.ray import partitions
from mien.app.labeling.ray.ledger import Ledger
from mien.app.labeling.ray.partitions import (
    AnotherRun,
    Partition,
    begin_run,
    commit,
    count_attempt,
    read_partition,
    read_plan,
    signature_of,
    table_path,
    write_plan,
)
from mien.app.labeling.records import Failure, Input
from mien.app.labeling.summary import Outcome
from mien.app.labeling.view import View
from tests.unit.app.labeling.conftest import Labeled

FACTS = {"model": "tiny", "detector": "builtin"}


def source(name: str, signature: str = "1:1", failure: Failure | None = None) -> Input:
    return Input(name, "file", f"/photos/{name}".encode("utf-8", "surrogateescape"), 1, signature, failure)


def settled(
    out: Path, sources: list[Input], facts: dict[str, str] = FACTS, *, new_run: bool = False
) -> tuple[tuple[int, int], list[str]]:
    """Numbers of inputs and of labeled ones, and the names of unlabeled inputs."""
    with closing(Ledger(out, Outcome())) as ledger:
        ledger.add(sources, lambda _count: None)
        ledger.settle(facts, new_run=new_run)
        missing = [one.name for group in ledger.missing(2) for one in group]
        return ledger.counts(), missing


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    for name in (LABELS_DIR, FILES_DIR, ".mien/part"):
        (folder / name).mkdir(parents=True)
    return folder


def committed(out: Path, finished: Labeled, sources: list[Input], run: str | None = None) -> str:
    """Commit the rows of the finished run as those of `sources`; returns the key of the partition."""
    run = run or begin_run(out)
    key = write_plan(out, sources, FACTS)
    inputs = tuple((one.name, signature_of(one)) for one in sources)
    with closing(View(finished.out)) as view:
        commit(out, Partition(key, inputs, FACTS, {"ok": len(sources)}), run, face_rows(view), file_rows(view))
    return key


def test_the_table_that_lists_the_inputs_is_renamed_last(
    out: Path, finished: Labeled, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, renamed = begin_run(out), list[str]()
    monkeypatch.setattr(Path, "replace", lambda _part, target: renamed.append(target.parent.name))
    committed(out, finished, [source("a.jpg")], run)
    assert renamed[-2:] == [LABELS_DIR, FILES_DIR]


def test_labels_without_their_files_are_ignored_and_removed(out: Path, finished: Labeled) -> None:
    key = committed(out, finished, [source("a.jpg")])
    table_path(out, FILES_DIR, key).unlink()  # what a worker leaves that was killed between the two renamings
    assert read_partition(out, key) is None
    assert settled(out, [source("a.jpg")]) == ((1, 0), ["a.jpg"])
    assert not table_path(out, LABELS_DIR, key).exists()


def test_an_input_in_two_partitions_is_left_in_one(out: Path, finished: Labeled) -> None:
    committed(out, finished, [source("a.jpg")])
    committed(out, finished, [source("a.jpg"), source("b.jpg")])
    (total, done), missing = settled(out, [source("a.jpg"), source("b.jpg")])
    assert total == 2
    assert done + len(missing) == 2
    assert len(list((out / FILES_DIR).iterdir())) == 1


def test_two_inputs_with_one_name_are_named_and_one_input_twice_is_one(out: Path) -> None:
    first, second = (Input("web/a", "file", f"https://web/a?id={number}".encode(), 0) for number in (1, 2))
    assert settled(out, [first, first]) == ((1, 0), ["web/a"])
    with pytest.raises(LabelingError, match=r"two inputs have the name web/a: .*id=1.*id=2"):
        settled(out, [first, second])


def test_partitions_of_another_model_are_kept_and_rejected_without_a_new_run(out: Path, finished: Labeled) -> None:
    key = committed(out, finished, [source("a.jpg")])
    other = FACTS | {"model": "other"}
    with pytest.raises(OtherRun, match="model tiny -> other"):
        settled(out, [source("a.jpg")], other)
    assert table_path(out, FILES_DIR, key).exists()
    assert settled(out, [source("a.jpg")], other, new_run=True) == ((1, 0), ["a.jpg"])
    for table in (FILES_DIR, LABELS_DIR):
        assert table_path(out / ".mien" / "ray-run.1", table, key).exists()


def test_a_table_of_another_program_is_rejected_and_kept(out: Path, finished: Labeled) -> None:
    committed(out, finished, [source("a.jpg")])
    foreign = out / LABELS_DIR / "part-mine.parquet"
    foreign.write_bytes(b"PAR1 years of work")
    with pytest.raises(ForeignFile, match="part-mine"):
        settled(out, [source("a.jpg")])
    assert foreign.read_bytes() == b"PAR1 years of work"


def test_a_worker_of_an_earlier_run_commits_nothing(out: Path, finished: Labeled) -> None:
    earlier = begin_run(out)
    begin_run(out)
    with pytest.raises(AnotherRun):
        committed(out, finished, [source("a.jpg")], earlier)
    assert not list((out / LABELS_DIR).iterdir())
    assert not list((out / ".mien" / "part").iterdir())


def test_a_plan_keeps_unusual_names_and_failures(out: Path) -> None:
    odd = Input("latin-\\xe9", "file", b"/photos/latin-\xe9", 5, "5:7")
    dead = Input("名.jpg", "none", "/photos/名.jpg".encode(), 0, "", Failure("not_found", "gone"))
    assert read_plan(out, write_plan(out, [odd, dead], FACTS)) == [odd, dead]


def test_a_partition_that_crashes_workers_ends_the_run_and_names_its_files(out: Path) -> None:
    key = write_plan(out, [source("a.jpg"), source("b.jpg")], FACTS)
    for _ in range(3):
        count_attempt(out, key, 3)
    with pytest.raises(LabelingError, match=r"a\.jpg to b\.jpg"):
        count_attempt(out, key, 3)


def test_a_full_disk_leaves_no_partial_partition(out: Path, finished: Labeled, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin_run(out)
    monkeypatch.setattr(partitions.os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(DiskFull, match="no space left"):
        committed(out, finished, [source("a.jpg")], run)
    assert not list((out / LABELS_DIR).iterdir())
    assert not list((out / ".mien" / "part").iterdir())
