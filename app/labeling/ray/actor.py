"""Ray actor that labels and commits partitions with one pipeline."""

import itertools
import json
import os
import socket
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from mien.app.labeling.columns import Row, face_rows, file_rows
from mien.app.labeling.engine import Run
from mien.app.labeling.facts import facts_of, open_pipeline
from mien.app.labeling.files import STATE_DIR, LabelingError
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.ray.cluster import agreed
from mien.app.labeling.ray.earlier import reuse
from mien.app.labeling.ray.partitions import Partition, commit, count_attempt, read_partition, read_plan, signature_of
from mien.app.labeling.records import TRANSIENT, Input
from mien.app.labeling.summary import Outcome
from mien.app.settings import Settings

_ATTEMPTS: Final = 5


class Labeler:
    """Actor on a machine of the cluster."""

    def __init__(self, settings: Settings, options: LabelOptions, run: str, facts: dict[str, str]) -> None:
        """Open detector and model. Raises: NotReady, if they differ from those of the run."""
        self._out, self._run, self._options = options.out, run, options
        self._pipeline = open_pipeline(settings)
        self._facts = agreed({"the run": facts, socket.gethostname(): facts_of(self._pipeline)})

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Label the partitions of a batch; `error` is class and message of an error that ends the run, or empty."""
        return {"key": batch["key"], "error": [self._try(str(key)) for key in batch["key"]]}

    def _try(self, key: str) -> str:
        try:
            if read_partition(self._out, key) is None:  # a lost worker may have committed it already
                count_attempt(self._out, key, _ATTEMPTS)
                with tempfile.TemporaryDirectory(prefix="mien-") as scratch:
                    self._label(key, read_plan(self._out, key), Path(scratch))
        except (LabelingError, OSError) as error:
            return json.dumps([type(error).__name__, f"{socket.gethostname()}: {error}"])
        return ""

    def _label(self, key: str, inputs: list[Input], scratch: Path) -> None:
        from pyarrow import ArrowException

        try:
            rest, faces, files = reuse(self._out, inputs)
        except (OSError, ArrowException, sqlite3.Error):
            rest, faces, files = inputs, [], []
        os.mkdir(scratch / STATE_DIR)
        with closing(Journal(scratch)) as journal:
            journal.knows_duplicates = False
            journal.put_facts(self._facts)
            journal.scan(rest, lambda _count: None)
            outcome = Outcome()
            Run(journal, self._options, self._pipeline, outcome).label()
            statuses, labels, reasons, errors = tally(itertools.chain(faces, face_rows(journal)))
            known = {item.name for item in inputs if item.failure is not None}
            partition = Partition(
                key,
                tuple((item.name, signature_of(item)) for item in inputs),
                self._facts,
                statuses,
                labels,
                tuple(errors),
                dict(outcome.stage_seconds),
                retry=any(reason in TRANSIENT and name not in known for name, reason, _ in errors),
                reasons=reasons,
                reused=tally(faces)[0].total(),
            )
            tables = itertools.chain(faces, face_rows(journal)), itertools.chain(files, file_rows(journal))
            commit(self._out, partition, self._run, *tables)


def tally(faces: Iterable[Row]) -> tuple[Counter[str], Counter[str], Counter[str], list[tuple[str, str, str]]]:
    """Images per status, faces per label and per reason for doubt, and file, reason and message of each error."""
    statuses, labels, reasons = Counter[str](), Counter[str](), Counter[str]()
    errors: list[tuple[str, str, str]] = []
    for (file, _), rows in itertools.groupby(faces, key=itemgetter("file", "frame")):
        for number, row in enumerate(rows):
            if number == 0:
                statuses[str(row["status"])] += 1
            if number == 0 and row["status"] == "error":
                errors.append((file, str(row["reason"]), str(row["error"])))
            if row["face"] is not None:
                labels[str(row["label"])] += 1
                reasons.update(str(row["reasons"]).split())
    return statuses, labels, reasons, errors
