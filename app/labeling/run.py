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
from importlib.util import find_spec
from typing import Final

import cv2
import numpy as np
import onnxruntime
import PIL

from mien.app import VERSION
from mien.app.labeling.batch import Batch, BatchResult, Executor, Threads
from mien.app.labeling.cluster import RayTasks, connected
from mien.app.labeling.containers import ContainerError, expected_frames, is_short, open_container, page_count
from mien.app.labeling.face_file import FaceFile
from mien.app.labeling.facts import OtherRun, with_limits, with_recorded_precision
from mien.app.labeling.files import RUN_FILE, LabelingError, check_out, clear_parts, disk_errors, output_lock
from mien.app.labeling.images import ANNOTATED, THUMBS
from mien.app.labeling.journal import Journal, NoJournal, open_journal
from mien.app.labeling.options import DEFAULT_OUTPUTS, SAMPLED, LabelOptions
from mien.app.labeling.outputs import check_outputs, images_for, with_earlier, write_output
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import CONTAINERS, failure_of, file_sha256, local_file, may_have_frames
from mien.app.labeling.records import STILL, Input
from mien.app.labeling.scan import printable, scan
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.labeling.store import is_url
from mien.app.labeling.summary import Outcome, accuracy_by_reason
from mien.app.settings import Settings
from mien.app.wording import counted
from mien.data.atomic import write_atomic
from mien.data.contract.decode import formats
from mien.models.manifest import artifact_dir, read_manifest

BATCH: Final = 16
# Members of archives and decoded frames stay in memory until they are labeled; a batch ends with the one that exceeds
# this.
BATCH_BYTES: Final = 32_000_000
FRAME_BATCH: Final = 4


def label(options: LabelOptions, settings: Settings, report: Reporter, signals: Interrupts | None = None) -> Outcome:
    """Label all inputs into `options.out`, resuming an earlier run; a signal stops it early.

    Raises: LabelingError and its subclasses, StartupError and its subclasses, ArtifactError.
    """
    signals, settings = signals or Interrupts(), with_limits(settings)
    check_outputs(options.outputs)
    check_out(options.out)
    outcome = Outcome()
    try:
        if not options.new_run:
            with contextlib.suppress(NoJournal), contextlib.closing(open_journal(options.out)) as earlier:
                settings = with_recorded_precision(settings, earlier.facts)
        with contextlib.ExitStack() as cluster:
            if options.engine == "local":
                executor: Executor = Threads(options, settings)
            else:
                ray = cluster.enter_context(connected(options))
                cluster.enter_context(signals.installed())  # Ray installs its own handlers when it starts
                executor = RayTasks(ray, options, settings)
            outcome.workers, outcome.facts = executor.workers, executor.facts
            outcome.accuracy = accuracy_by_reason(read_manifest(artifact_dir(settings.model)))
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
            with self.signals.deferred(), contextlib.closing(executor.map(self._begun(), journal)) as labeled:
                for batch, result in labeled:
                    self._commit(batch, result)
        finally:
            outcome.seconds = time.perf_counter() - labeling_began
        self.signals.check()
        if self.complete:
            journal.remove_stale()
            self._name_unused(executor.face_file)
        for name in outputs:
            self.signals.check()
            report.writing(name)
            outcome.written += write_output(name, journal)
        outcome.total_seconds = time.perf_counter() - began
        outcome.count(journal, self.images)
        _write_run_file(journal, self.options, outcome)
        outcome.suggest(self.options.out)

    def _name_unused(self, face_file: FaceFile | None) -> None:
        """Say which given faces are of no image or frame of the run. Raises: LabelingError, if all are."""
        unused, is_used = list[str](), False
        for name, frames in sorted(face_file.faces.items()) if face_file else ():
            if not self.journal.has_input(name):
                unused.append(name)
                continue
            labeled = self.journal.frame_numbers(name)  # none of a still image, which has the faces of all frames
            missing = sorted(frames.keys() - labeled) if labeled else []
            unused += [f"{name} {'without a frame' if number == STILL else f'frame {number}'}" for number in missing]
            is_used |= len(missing) < len(frames)
        if unused:
            listed = ", ".join(unused[:5] + (["..."] if len(unused) > 5 else []))
            text = (
                f"{self.options.boxes} has faces of {counted(len(unused), 'image')} not among those labeled: {listed}"
            )
            if not is_used:
                raise LabelingError(
                    f"{text}. Name them as labels.csv does, with the number of each frame, and add --new-run."
                )
            self.report.say(text)

    def _scan(self) -> list[str]:
        """Check the settings, and store the inputs of a scan.

        Returns: outputs to write. Raises: OtherRun, ForeignFile.
        """
        journal, options, report, facts = self.journal, self.options, self.report, self.outcome.facts
        if journal.facts and journal.facts != facts and not options.new_run:
            raise OtherRun(options.out, journal.facts, facts)
        requested = options.outputs or list(DEFAULT_OUTPUTS)
        outputs = with_earlier(requested, journal)
        if more := outputs[len(requested) :]:
            report.say(f"Also updating outputs of an earlier run: {', '.join(more)}.")
        kept = journal.keep_copy() if options.new_run and journal.facts else None
        try:
            journal.scan(scan(options, journal.had_inputs), report.scanned, new_run=options.new_run)
        except BaseException:
            if kept is not None:  # nothing was forgotten
                kept.unlink(missing_ok=True)
            raise
        if kept is not None:
            report.say(f"Starting a new run. The journal of the earlier run is kept as {kept}.")
        if journal.facts and journal.options.drawing != options.drawing:
            report.say("Annotated copies, if any, are written again: their size or the faces drawn on them changed.")
            journal.redraw(ANNOTATED)
        limits = f"{self.settings.max_bytes} {self.settings.max_pixels}"
        readable = " ".join((*formats(), *(["raw"] if find_spec("rawpy") else [])))
        for key, value, reason, which in (
            ("limits", limits, "too_large", "above the earlier limits"),
            ("formats", readable, "unsupported", "in formats that could not be read before"),
        ):
            if journal.get(key) not in (None, value) and (again := journal.retry(reason)):
                report.say(f"Retrying {counted(again, 'file')} {which}.")
            journal.put(key, value)
        journal.retry_live_photos()
        if options.check_hashes:
            changed = journal.recheck()
            report.say(f"{counted(changed, 'file')} with changed content, although size and time are the same.")
        journal.put_run(facts, options)
        journal.put("outputs", json.dumps(outputs))
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
        reused = sum(result.reused for result in results)
        outcome.new += len(results) - reused
        outcome.reused += reused
        for stage, milliseconds in result.timings_ms.items():
            outcome.stage_seconds[stage] += milliseconds / 1000
        errors = [
            (result.input.name, result.reason, result.error)
            for result in results
            if result.status == "error" or result.reason == "invalid_face"
        ]
        self.report.labeled(len(results), sum(len(result.faces) for result in results), errors)

    def _batches(self) -> Iterator[Batch]:
        """Batches of inputs sorted by name; they do not depend on what is labeled already."""
        batch: list[Input] = []
        count = 0
        for item, done in self.journal.todo(self.images):
            may_be_paged = item.kind == "file" and not done and may_have_frames(item.name, self.options)
            if may_be_paged and page_count(item.path) > 1:
                item = self.journal.has_pages(item)  # noqa: PLW2901
            if item.kind not in CONTAINERS:
                count += 1
                batch += [] if done else [item]
            if batch and (count == BATCH or item.kind in CONTAINERS):
                yield Batch(batch)
                batch = []
            if item.kind in CONTAINERS and not done:
                yield from self._container_batches(item)
            count = 0 if item.kind in CONTAINERS else count % BATCH
        if batch:
            yield Batch(batch)

    def _container_batches(self, container: Input) -> Iterator[Batch]:
        """Batches of the images of an archive or a video, and its end; images before a damage are included."""
        self.journal.open_container(container)
        batch: list[Input] = []
        sha256, failure = "", None
        try:
            with local_file(container.path) as path:
                sha256 = file_sha256(path)
                self._expect(container, path)
                opened = replace(container, sha256=sha256)
                is_done = self.journal.is_done
                images = open_container(opened, path, self.options, self.settings, is_done)
                count = weight = 0
                for child, done in images:
                    batch += [] if done else [child]
                    count, weight = count + 1, weight + (BATCH_BYTES // FRAME_BATCH if child.is_frame else child.size)
                    if count == BATCH or weight >= BATCH_BYTES:
                        if batch:
                            yield Batch(batch)
                        batch, count, weight = [], 0, 0
        except ContainerError as error:
            failure = error.failure
        except (LabelingError, sqlite3.Error):
            raise
        except Exception as error:  # noqa: BLE001  # as in `BatchLabeler`: one poisoned file must not end a run
            failure = failure_of(error, container.name)
        if batch:
            yield Batch(batch)
        yield Batch([], container, failure, sha256)

    def _expect(self, container: Input, path: bytes) -> None:
        """Report the frames of a video that is to be labeled. Raises: ContainerError, for that of a Live Photo."""
        options = self.options
        if container.kind != "video":
            return
        photo = None if options.live_photos else self.journal.live_photo(container.name)
        if photo is not None and is_short(path):
            message = f"the video of the Live Photo {photo}; --live-photos labels it, too"
            raise ContainerError(message, "live_photo", "skipped")
        if options.samples_by_default and not self.said_sampling:
            self.report.say(SAMPLED)
            self.said_sampling = True
        self.report.expect(expected_frames(path, options))


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
        "reused": outcome.reused,
        "remaining": outcome.remaining,
        "seconds": round(outcome.total_seconds, 3),
        "seconds_labeling": round(outcome.seconds, 3),
        "workers": outcome.workers,
    }
    write_atomic(out / RUN_FILE, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    outcome.written.append(out / RUN_FILE)
