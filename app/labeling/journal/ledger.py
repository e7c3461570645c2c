"""Ledger of the driver of a cluster: inputs, and the partitions that contain them."""

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mien.app.labeling.facts import OtherRun, changes
from mien.app.labeling.files import STATE_DIR
from mien.app.labeling.ray.partitions import (
    FILES_DIR,
    LABELS_DIR,
    Written,
    keys_of,
    read_written,
    remove,
    set_aside,
    signature_of,
    source_fields,
    source_from,
)
from mien.app.labeling.records import Source

_BATCH: Final = 2_000


class Ledger:
    """Inputs, and the partitions that contain them, in a temporary database, on disk if it is large."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(
            "CREATE TABLE found(name TEXT PRIMARY KEY, source TEXT NOT NULL, signature TEXT NOT NULL, key TEXT)"
        )
        self.statuses: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()

    def close(self) -> None:
        """Delete the database."""
        self._db.close()

    def add(self, sources: Iterable[Source]) -> Iterator[int]:
        """Store the inputs of a scan; yields their number so far."""
        count = 0
        iterator = iter(sources)
        while batch := list(itertools.islice(iterator, _BATCH)):
            rows = [(source.name, json.dumps(source_fields(source)), signature_of(source)) for source in batch]
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO found(name, source, signature) VALUES(?,?,?)", rows)
            self._db.execute("COMMIT")
            count += len(batch)
            yield count

    def is_own(self, name: str) -> bool:
        """Whether a file is the table of a partition."""
        return name.split("/", maxsplit=1)[0] in (LABELS_DIR, FILES_DIR)

    def had_inputs(self, prefix: str) -> bool:
        """Whether partitions contain inputs with this prefix."""
        found = (read_written(self._out, key) for key in keys_of(self._out))
        return any(name.startswith(prefix) for one in found if one is not None for name, _ in one.inputs)

    def earlier_facts(self) -> dict[str, str]:
        """Facts of an earlier run; empty if there is none."""
        found = (read_written(self._out, key) for key in keys_of(self._out))
        return next((written.facts for written in found if written is not None), {})

    def settle(self, facts: dict[str, str], *, new_run: bool = False) -> Path | None:
        """Keep valid partitions and remove all others; those of an earlier run are moved to another folder.

        Returns: folder with the partitions of the earlier run. Raises: OtherRun, unless `new_run`; ForeignFile.
        """
        aside: Path | None = None
        for key in keys_of(self._out):
            written = read_written(self._out, key)
            if written is not None and (new_run or written.facts != facts):
                if not new_run:
                    raise OtherRun(self._out, changes(written.facts, facts))
                aside = aside or self._next_aside()
                set_aside(self._out, key, aside)
            elif written is None or written.again or not self.take(written):
                remove(self._out, key)
        return aside

    def _next_aside(self) -> Path:
        numbers = itertools.count(1)
        places = (self._out / STATE_DIR / f"ray-run.{number}" for number in numbers)
        return next(place for place in places if not place.exists())

    def take(self, written: Written) -> bool:
        """Record a partition; returns False without recording if an input is gone, changed or in another partition."""
        self._db.execute("BEGIN")
        rows = [(written.key, name, signature) for name, signature in written.inputs]
        taken = self._db.executemany(
            "UPDATE found SET key=? WHERE name=? AND signature=? AND key IS NULL", rows
        ).rowcount
        if taken != len(rows):
            self._db.execute("ROLLBACK")
            return False
        self._db.execute("COMMIT")
        self.statuses.update(written.statuses)
        self.labels.update(written.labels)
        return True

    def counts(self) -> tuple[int, int]:
        """Number of inputs, and of inputs in a partition."""
        total, done = self._db.execute("SELECT COUNT(*), COUNT(key) FROM found").fetchone()
        return total, done

    def missing(self, size: int) -> Iterator[list[Source]]:
        """Inputs that are in no partition, sorted by name, in lists of `size`."""
        cursor = self._db.execute("SELECT source FROM found WHERE key IS NULL ORDER BY name")
        while rows := cursor.fetchmany(size):
            yield [source_from(json.loads(row[0])) for row in rows]
