"""One run of `mien label`: lock, scan, label, write the outputs.

mien label samples/photos --out out
"""

import contextlib
import json
import os
import platform
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np
import onnxruntime
import PIL

from mien.app import VERSION
from mien.app.labeling.batch import Batch, BatchResult, Executor, Threads
from mien.app.labeling.cluster import RayTasks, connected
from mien.app.labeling.containers import ContainerError, expected_frames, frames
from mien.app.labeling.facts import OtherRun, with_limits
from mien.app.labeling.files import RUN_FILE, LabelingError, check_out, clear_parts, disk_errors, output_lock
from mien.app.labeling.images import THUMBS
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import DEFAULT_OUTPUTS, SAMPLED, LabelOptions
from mien.app.labeling.outputs import check_outputs, images_for, record_outputs, write_output
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import failure_of, file_sha256, local_file
from mien.app.labeling.records import Failure, Input
from mien.app.labeling.scan import printable, scan
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.labeling.store import is_url
from mien.app.labeling.summary import Outcome
from mien.app.settings import Settings
from mien.app.wording import counted
from mien.data.atomic import write_atomic

BATCH: Final = 16
FRAME_BATCH: Final = 4  # decoded frames stay in memory until they are labeled


def label(options: LabelOptions, settings: Settings, report: Reporter, signals: Interrupts | None = None) -> Outcome:
    """Label all inputs into `options.out`, resuming an earlier run; a signal stops it early.

    Raises: LabelingError and its subclasses, StartupError and its subclasses, ArtifactError.
    """
    signals, settings = signals or Interrupts(), with_limits(settings)
    check_outputs(options.outputs)
    check_out(options.out)
    outcome = Outcome()
    try:
        with contextlib.ExitStack() as cluster:
            if options.engine == "local":
                executor: Executor = Threads(options, settings)
            else:
                ray = cluster.enter_context(connected(options))
                cluster.enter_context(signals.installed())  # Ray installs its own handlers when it starts
                executor = RayTasks(ray, options, settings)
            outcome.workers, outcome.facts = executor.workers, executor.facts
            with output_lock(options.out), disk_errors(options.out):
                clear_parts(options.out)
                with contextlib.closing(Journal(options.out)) as journal:
                    run = _Run(journal, options, settings, outcome, report, signals)
                    try:
                        run.execute(executor)
                    finally:
                        outcome.count(journal, run.images)
    except Stopped as stop:
        outcome.stopped = str(stop)
    return outcome


@dataclass(slots=True)
class _Run:
    """A run over the inputs of a journal; `images` is a bit mask of the images that are written during labeling."""

    journal: Journal
    options: LabelOptions
    settings: Settings
    outcome: Outcome
    report: Reporter
    signals: Interrupts
    images: int = 0
    complete: bool = False  # whether all inputs were labeled
    said_sampling: bool = False

    def execute(self, executor: Executor) -> None:
        """Scan, label, and write the outputs."""
        journal, outcome, report, began = self.journal, self.outcome, self.report, time.perf_counter()
        outputs = self._scan()
        self.images = images_for(outputs)
        journal.relabel_deleted(self.images & ~THUMBS)
        total, before = journal.progress()
        if before:
            report.say(f"Resuming: {before:,} of {counted(total, 'image')} already labeled.")
        report.start(min(total, before + (self.options.limit or total)), before)
        labeling_began = time.perf_counter()
        try:
            with self.signals.deferred(), contextlib.closing(executor.map(self._begun())) as labeled:
                for batch, result in labeled:
                    self._commit(batch, result)
        finally:
            outcome.seconds = time.perf_counter() - labeling_began
        self.signals.check()
        if self.complete:
            journal.remove_stale()
        for name in outputs:
            self.signals.check()
            report.writing(name)
            outcome.written += write_output(name, journal)
        outcome.total_seconds = time.perf_counter() - began
        outcome.count(journal, self.images)
        _write_run_file(journal, self.options, outcome)
        outcome.suggest(self.options.out)

    def _scan(self) -> list[str]:
        """Check the settings, and store the inputs of a scan.

        Returns: outputs to write. Raises: OtherRun, ForeignFile.
        """
        journal, options, facts = self.journal, self.options, self.outcome.facts
        if journal.facts and journal.facts != facts:
            raise OtherRun(options.out, journal.facts, facts)
        outputs = options.outputs or list(DEFAULT_OUTPUTS)
        recorded = record_outputs(outputs, journal)
        journal.scan(scan(options, journal.had_inputs), self.report.scanned)
        journal.put_run(facts, options)
        journal.put("outputs", json.dumps(recorded))
        journal.put("inputs", json.dumps(_inputs(options)))
        return outputs

    def _begun(self) -> Iterator[Batch]:
        """Batches that are marked as begun, until all are done, a signal comes or the limit is reached."""
        left = self.options.limit
        for batch in self._batches():
            inputs = batch.inputs if left is None else batch.inputs[:left]
            yield replace(batch, inputs=self.journal.begin(inputs))
            if self.signals.received or len(inputs) < len(batch.inputs):
                return
            left = None if left is None else left - len(inputs)
        self.complete = True

    def _commit(self, batch: Batch, result: BatchResult) -> None:
        results, outcome = result.results, self.outcome
        if batch.closes is not None:
            self.journal.close_container(batch.closes, batch.failure, batch.sha256)
        self.journal.save(results)
        outcome.new += len(results)
        for stage, milliseconds in result.timings_ms.items():
            outcome.stage_seconds[stage] += milliseconds / 1000
        errors = sum(result.status == "error" for result in results)
        self.report.labeled(len(results), sum(len(result.faces) for result in results), errors)

    def _batches(self) -> Iterator[Batch]:
        """Batches of inputs sorted by name; they do not depend on what is labeled already."""
        batch: list[Input] = []
        count = 0
        for item, done in self.journal.todo(self.images):
            is_video = item.kind == "video"
            if not is_video:
                count += 1
                batch += [] if done else [item]
            if batch and (count == BATCH or is_video):
                yield Batch(batch)
                batch = []
            if is_video and not done:
                yield from self._video_batches(item)
            count = 0 if is_video else count % BATCH
        if batch:
            yield Batch(batch)

    def _video_batches(self, video: Input) -> Iterator[Batch]:
        """Batches of the frames of a video, and its end; frames before a damage are included."""
        if photo := self.journal.live_photo(video.name):
            yield Batch([], video, Failure("live_photo", f"the video of the Live Photo {photo}", "skipped"))
            return
        self.journal.open_container(video)
        batch: list[Input] = []
        sha256, failure = "", None
        try:
            with local_file(video.path) as path:
                sha256 = file_sha256(path)
                if self.options.samples_by_default and not self.said_sampling:
                    self.report.say(SAMPLED)
                    self.said_sampling = True
                self.report.expect(expected_frames(path, self.options))
                opened = replace(video, sha256=sha256)
                for count, (frame, done) in enumerate(
                    frames(opened, path, self.options, self.journal.is_done), start=1
                ):
                    batch += [] if done else [frame]
                    if count % FRAME_BATCH == 0:
                        if batch:
                            yield Batch(batch)
                        batch = []
        except ContainerError as error:
            failure = error.failure
        except (LabelingError, sqlite3.Error):
            raise
        except Exception as error:  # noqa: BLE001  # as in `BatchLabeler`: one poisoned file must not end a run
            failure = failure_of(error, video.name)
        if batch:
            yield Batch(batch)
        yield Batch([], video, failure, sha256)


def _inputs(options: LabelOptions) -> list[str]:
    """Inputs as full paths or URLs, or the path of a list."""
    if options.files_from == "-":
        return ["standard input"]
    paths = options.inputs if options.files_from is None else [options.files_from]
    return [path if is_url(path) else printable(os.path.abspath(path)) for path in paths]


def _write_run_file(journal: Journal, options: LabelOptions, outcome: Outcome) -> None:
    """Write `run.json`: versions, settings and outcome."""
    out = journal.out
    facts = {
        "versions": {
            "mien": VERSION,
            "python": platform.python_version(),
            "system": platform.platform(),
            "onnxruntime": onnxruntime.__version__,
            "opencv": cv2.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
        "settings": outcome.facts,
        "inputs": _inputs(options),
        "options": options.recorded,
        "outputs": [str(path.relative_to(out)) for path in outcome.written],
        "images": outcome.statuses,
        "faces": outcome.labels,
        "labeled_now": outcome.new,
        "remaining": outcome.remaining,
        "seconds": round(outcome.total_seconds, 3),
        "seconds_labeling": round(outcome.seconds, 3),
        "workers": outcome.workers,
    }
    write_atomic(out / RUN_FILE, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    outcome.written.append(out / RUN_FILE)
