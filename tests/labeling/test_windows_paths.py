"""Paths of Windows: network shares, and suggested commands; tested on every system."""

import sqlite3
from contextlib import closing
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from mien.app.labeling import files
from mien.app.labeling.files import quoted
from mien.app.labeling.schema import sqlite_uri


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (PureWindowsPath("//nas/share/my out/journal.sqlite3"), "file:////nas/share/my%20out/journal.sqlite3"),
        (PureWindowsPath("C:/out/a?b#c"), "file:///C%3A/out/a%3Fb%23c"),
        (PurePosixPath("/out/50%"), "file:///out/50%25"),
    ],
)
def test_a_journal_on_a_network_share_has_an_address_without_a_server(path: PureWindowsPath, uri: str) -> None:
    assert sqlite_uri(path) == uri


def test_a_journal_is_opened_at_a_path_with_two_slashes_and_signs(tmp_path: Path) -> None:
    """As SQLite reads the address of a share; `file://nas/...` is an error for it."""
    folder = tmp_path / "50% #1?"
    folder.mkdir()
    uri = sqlite_uri(PurePosixPath("/" + str(folder / "journal")))
    assert uri.startswith("file:////")
    with closing(sqlite3.connect(uri, uri=True)) as journal:
        journal.execute("CREATE TABLE a(b)")
    assert (folder / "journal").exists()


@pytest.mark.parametrize(("system", "command"), [("nt", '"a b\'s"'), ("posix", "'a b'\"'\"'s'")])
def test_suggested_commands_are_quoted_for_the_shell_of_the_system(
    system: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PurePosixPath("a b's")
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "name", system)
        assert quoted(path) == command
