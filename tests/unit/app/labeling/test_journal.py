"""Journal: time of a rescan."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from mien.app.labeling.journal import Journal
from mien.app.labeling.records import Failure, Input, Result

COUNT = 5_000


def inputs(prefix: str) -> Iterator[Input]:
    for number in range(COUNT):
        yield Input(f"{prefix}/{number:05d}.jpg", "file", f"/{prefix}/{number}".encode(), 1, "1:1")
    yield Input("locked", "folder", b"/locked", 0, failure=Failure("permission_denied", "no permission"))


def test_a_rescan_after_all_inputs_were_replaced_takes_as_long_as_a_first_scan(tmp_path: Path) -> None:
    (tmp_path / ".mien").mkdir()
    seconds = []
    with closing(Journal(tmp_path)) as journal:
        for prefix in ("old", "new"):
            began = time.perf_counter()
            journal.scan(inputs(prefix), lambda _count: None)
            seconds.append(time.perf_counter() - began)
            for item, _ in list(journal.todo(0)):
                if item.kind == "file":
                    journal.save([Result(item, "no_face")])
    assert seconds[1] < 10 * seconds[0] + 1.0, "quadratic, it took 100 times as long"
