"""Journal: time of a rescan, readers of a new journal, several threads, and paths of Windows."""

import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from unittest.mock import Mock

import pytest

from mien.app.labeling.files import STATE_DIR, OutputRefused
from mien.app.labeling.journal import JOURNAL_NAME, Journal, NoJournal, open_journal
from mien.app.labeling.records import Failure, Input, Result
from mien.app.labeling.schema import sqlite_uri

COUNT = 3_000


def inputs(prefix: str) -> Iterator[Input]:
    for number in range(COUNT):
        yield Input(f"{prefix}/{number:05d}.jpg", "file", f"/{prefix}/{number}".encode(), 1, "1:1")
    yield Input("locked", "folder", b"/locked", 0, failure=Failure("permission_denied", "no permission"))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    (tmp_path / STATE_DIR).mkdir()
    with closing(Journal(tmp_path)) as journal:
        yield journal


def test_a_scan_after_all_inputs_were_replaced_takes_as_long_as_a_first_one_and_the_old_ones_are_not_read(
    journal: Journal,
) -> None:
    seconds = []
    for prefix in ("old", "new"):
        began = time.process_time()
        journal.scan(inputs(prefix), lambda _count: None)
        seconds.append(time.process_time() - began)
        journal.save(Result(item, "no_face", sha256="0" * 64) for item, _ in journal.todo(0) if item.kind == "file")
    assert seconds[1] < 10 * seconds[0] + 1.0, "quadratic, it took 100 times as long"
    reading = Mock(return_value=None)
    journal._db.set_progress_handler(reading, 10)
    assert journal.first_with_hash("0" * 64) == "new/00000.jpg"
    assert reading.call_count < 10


def test_a_journal_that_cannot_be_opened_is_not_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / STATE_DIR / JOURNAL_NAME).mkdir(parents=True)
    with pytest.raises(OutputRefused, match="Check that you may read it"):
        open_journal(tmp_path)


def test_a_reader_of_a_journal_that_is_being_created_finds_all_of_its_tables_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []

    def read(_statement: str) -> None:
        try:
            with closing(open_journal(tmp_path)) as view:
                found.append((view.counts(), view.remaining(), view.reasons()))
        except (NoJournal, sqlite3.Error) as error:
            found.append(type(error))

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        if "mode=rwc" in arguments[0]:
            connection.set_trace_callback(read)  # before each statement
        return connection

    (tmp_path / STATE_DIR).mkdir()
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", traced)
    with closing(Journal(tmp_path)):
        pass
    assert found[0] is NoJournal
    assert found[-1] == ({}, 0, {})
    assert all(result in (NoJournal, found[-1]) for result in found)


def test_threads_that_read_at_once_get_their_own_rows(journal: Journal) -> None:
    for number in range(500):
        journal.put(f"key {number}", f"value {number}")

    def wrong_values(first: int) -> int:
        numbers = [(31 * first + 7 * step) % 500 for step in range(10_000)]
        return sum(journal.get(f"key {number}") != f"value {number}" for number in numbers)

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(wrong_values, range(4))) == 0


def test_a_journal_of_an_earlier_version_is_refused_and_kept(journal: Journal, tmp_path: Path) -> None:
    journal._db.execute("ALTER TABLE items DROP COLUMN scene")
    tables = list(journal._db.iterdump())
    for open_again in (Journal, open_journal):
        with pytest.raises(OutputRefused, match="earlier version"):
            open_again(tmp_path)
    assert list(journal._db.iterdump()) == tables


def test_a_journal_in_a_folder_of_someone_else_is_read_without_creating_files(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.scan([Input("a.jpg", "file", b"/a.jpg", 1, "1:1")], lambda _count: None)
    journal.save([Result(item, "no_face") for item, _ in journal.todo(0)])
    journal.close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a user who is not root
    with closing(open_journal(tmp_path)) as view:
        assert view.counts() == {"no_face": 1}
        assert [path.name for path in (tmp_path / STATE_DIR).iterdir()] == [view.path.name]


def test_a_journal_has_an_address_on_a_network_share_and_with_signs_in_its_path(tmp_path: Path) -> None:
    for path, address in (
        (PureWindowsPath("//nas/share/my out/journal.sqlite3"), "file:////nas/share/my%20out/journal.sqlite3"),
        (PureWindowsPath("C:/out/a?b#c"), "file:///C%3A/out/a%3Fb%23c"),
        (PurePosixPath("/out/50%"), "file:///out/50%25"),
    ):
        assert sqlite_uri(path) == address
    # two slashes, as of a share: `file://nas/...` is an error for SQLite
    uri = sqlite_uri(PurePosixPath(f"/{tmp_path}/50% #1?"))
    with closing(sqlite3.connect(uri, uri=True)) as journal:
        journal.execute("CREATE TABLE a(b)")
    assert (tmp_path / "50% #1?").exists()
