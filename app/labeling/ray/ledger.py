"""Ledger of the driver of a cluster: inputs, and the partitions that contain them."""

import itertools
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from mien.app.labeling.facts import OtherRun
from mien.app.labeling.files import STATE_DIR, SameName
from mien.app.labeling.ray.earlier import EARLIER, write_index
from mien.app.labeling.ray.partitions import (
    Partition,
    input_fields,
    input_from,
    keys_of,
    read_partition,
    remove,
    set_aside,
    signature_of,
)
from mien.app.labeling.records import Input
from mien.app.labeling.summary import Outcome

_BATCH: Final = 2_000


class Ledger:
    """Inputs, and the partitions that contain them, in a temporary database, on disk if it is large.

    The results of these partitions are counted in `outcome`.
    """

    def __init__(self, out: Path, outcome: Outcome) -> None:
        self._out, self._outcome = out, outcome
        self._db = sqlite3.connect("")
        self._db.execute(
            "CREATE TABLE found(name TEXT PRIMARY KEY, source TEXT NOT NULL, signature TEXT NOT NULL, key TEXT)"
        )

    def close(self) -> None:
        """Delete the database."""
        self._db.close()

    def add(self, inputs: Iterable[Input], scanned: Callable[[int], None]) -> None:
        """Store the inputs of a scan; `scanned` is called with their number so far. Raises: SameName."""
        count, iterator = 0, iter(inputs)
        while batch := list(itertools.islice(iterator, _BATCH)):
            rows = [(item.name, json.dumps(input_fields(item)), signature_of(item)) for item in batch]
            insert = "INSERT OR IGNORE INTO found(name, source, signature) VALUES(?,?,?)"
            with self._db:
                added = self._db.executemany(insert, rows).rowcount
            for item in batch if added < len(batch) else ():
                (source,) = self._db.execute("SELECT source FROM found WHERE name=?", (item.name,)).fetchone()
                if (other := input_from(json.loads(source)).path) != item.path:
                    raise SameName(item.name, other, item.path)
            count += len(batch)
            scanned(count)

    def _partitions(self) -> Iterator[Partition]:
        """Committed partitions of earlier runs."""
        partitions = (read_partition(self._out, key) for key in keys_of(self._out))
        return (partition for partition in partitions if partition is not None)

    def had_inputs(self, prefix: str) -> bool:
        """Whether partitions contain inputs with this prefix."""
        return any(name.startswith(prefix) for partition in self._partitions() for name, _ in partition.inputs)

    def earlier_facts(self) -> dict[str, str]:
        """Facts of an earlier run; empty if there is none."""
        return next((partition.facts for partition in self._partitions()), {})

    def settle(self, facts: dict[str, str], *, new_run: bool = False) -> Path | None:
        """Keep valid partitions, and the rows of others for their unchanged inputs; move those of an earlier run.

        Returns: folder with the partitions of the earlier run. Raises: OtherRun, unless `new_run`; ForeignFile.
        """
        aside: Path | None = None
        kept = self._out / STATE_DIR / EARLIER
        if new_run:
            shutil.rmtree(kept, ignore_errors=True)
        for key in keys_of(self._out):
            partition = read_partition(self._out, key)
            if partition is not None and (new_run or partition.facts != facts):
                if not new_run:
                    raise OtherRun(self._out, partition.facts, facts)
                places = (self._out / STATE_DIR / f"ray-run.{number}" for number in itertools.count(1))
                aside = aside or next(place for place in places if not place.exists())
                set_aside(self._out, key, aside)
            elif partition is None:
                remove(self._out, key)
            elif partition.retry or not self.take(partition):
                set_aside(self._out, key, kept)
        write_index(self._out, facts)
        return aside

    def take(self, partition: Partition) -> bool:
        """Record a partition; returns False without recording if an input is gone, changed or in another partition."""
        rows = [(partition.key, name, signature) for name, signature in partition.inputs]
        taken = self._db.executemany(
            "UPDATE found SET key=? WHERE name=? AND signature=? AND key IS NULL", rows
        ).rowcount
        if taken != len(rows):
            self._db.rollback()
            return False
        self._db.commit()
        self._outcome.statuses.update(partition.statuses)
        self._outcome.labels.update(partition.labels)
        self._outcome.reasons.update(partition.reasons)
        return True

    def counts(self) -> tuple[int, int]:
        """Number of inputs, and of inputs in a partition."""
        total, done = self._db.execute("SELECT COUNT(*), COUNT(key) FROM found").fetchone()
        return total, done

    def missing(self, size: int) -> Iterator[list[Input]]:
        """Inputs that are in no partition, sorted by name, in lists of `size`."""
        cursor = self._db.execute("SELECT source FROM found WHERE key IS NULL ORDER BY name")
        while rows := cursor.fetchmany(size):
            yield [input_from(json.loads(row[0])) for row in rows]
