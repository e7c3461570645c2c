"""Ray actor that labels and commits partitions with one pipeline."""

import json
import os
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from mien.app.labeling.engine import Engine, Watcher
from mien.app.labeling.facts import facts_of, open_pipelines
from mien.app.labeling.files import STATE_DIR, LabelingError
from mien.app.labeling.journal import Journal, View
from mien.app.labeling.ray.cluster import agreed
from mien.app.labeling.ray.partitions import Written, attempt, commit, read_plan, read_written, signature_of
from mien.app.labeling.records import TRANSIENT, Source, Tally
from mien.app.labeling.request import Request
from mien.app.settings import Settings

_ATTEMPTS: Final = 5


class Labeler:
    """Actor on a machine of the cluster."""

    def __init__(self, settings: Settings, request: Request, run: str, facts: dict[str, str]) -> None:
        """Open detector and model. Raises: Unready, if they differ from those of the run."""
        self._out, self._run, self._request = request.out, run, request
        self._pipeline = open_pipelines(settings, 1)[0]
        self._facts = agreed({"the run": facts, socket.gethostname(): facts_of(self._pipeline)})

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Label the partitions of a batch; `trouble` is class and message of an error that ends the run, or empty."""
        troubles = [self._one(str(key)) for key in batch["key"]]
        return {"key": batch["key"], "trouble": troubles}

    def _one(self, key: str) -> str:
        try:
            if read_written(self._out, key) is None:  # a lost worker may have committed it already
                attempt(self._out, key, _ATTEMPTS)
                with tempfile.TemporaryDirectory(prefix="mien-") as scratch:
                    self._label(key, read_plan(self._out, key), Path(scratch))
        except (LabelingError, OSError) as error:
            return json.dumps([type(error).__name__, f"{socket.gethostname()}: {error}"])
        return ""

    def _label(self, key: str, sources: list[Source], scratch: Path) -> None:
        os.mkdir(scratch / STATE_DIR)
        with closing(Journal(scratch)) as journal:
            journal.put("facts", json.dumps(self._facts))
            for _ in journal.scan(sources):
                pass
            engine = Engine(journal, self._request, [self._pipeline], 0, Watcher(_ignore, _ignore))
            engine.run()
            self._commit(key, sources, scratch, engine.tally)

    def _commit(self, key: str, sources: list[Source], scratch: Path, tally: Tally) -> None:
        with closing(View(scratch, knows_duplicates=False)) as view:
            failed = [(one.name, one.reason or "", one.error or "") for one in view.images() if one.status == "error"]
            known = {source.name for source in sources if source.failure is not None}
            written = Written(
                key,
                tuple((source.name, signature_of(source)) for source in sources),
                self._facts,
                view.counts(),
                view.labels(),
                tuple(failed),
                tally.seconds,
                again=any(reason in TRANSIENT and name not in known for name, reason, _ in failed),
            )
            commit(self._out, view, written, self._run)


def _ignore(_: object) -> None:
    """Progress callback that does nothing."""
