"""Ray actor that labels and commits partitions with one pipeline."""

import json
import os
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from mien.app.labeling.engine import Run
from mien.app.labeling.facts import facts_of, open_pipeline
from mien.app.labeling.files import STATE_DIR, LabelingError
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.ray.cluster import agreed
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
        os.mkdir(scratch / STATE_DIR)
        with closing(Journal(scratch)) as journal:
            journal.knows_duplicates = False
            journal.put_facts(self._facts)
            journal.scan(inputs, lambda _count: None)
            outcome = Outcome()
            Run(journal, self._options, self._pipeline, outcome).label()
            failed = [image for image in journal.images() if image.status == "error"]
            known = {item.name for item in inputs if item.failure is not None}
            partition = Partition(
                key,
                tuple((item.name, signature_of(item)) for item in inputs),
                self._facts,
                journal.counts(),
                journal.labels(),
                tuple((image.input.name, image.reason or "", image.error or "") for image in failed),
                dict(outcome.stage_seconds),
                reasons=dict(journal.reasons()),
                retry=any(image.reason in TRANSIENT and image.input.name not in known for image in failed),
            )
            commit(self._out, journal, partition, self._run)
