"""One run of `mien label`: find the inputs, label them, commit the results, write the outputs.

mien label samples/photos --out out
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, Self

import cv2
import numpy as np
import onnxruntime
import PIL
from rich import progress
from rich.console import Console

from mien.app import VERSION
from mien.app.errors import LabelingError, Stopped
from mien.app.labeling.copies import check_out, disk_errors, output_lock
from mien.app.labeling.executors import (
    BATCH,
    Executor,
    Setup,
    Task,
    facts_of,
    local_executor,
    open_labeler,
    with_limits,
)
from mien.app.labeling.inputs import RUN_FILE, Item, counted, is_url, roots, scan
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import DEFAULT_OUTPUTS, FRAMES_PER_S, LabelOptions
from mien.app.labeling.tables import check_outputs, record_outputs, write_output
from mien.app.settings import InferenceSettings
from mien.app.video.reader import expected_samples
from mien.data.atomic import write_atomic

Run = dict[str, Any]
_SHORT_VIDEO_BYTES: Final = 5_000_000
_SHORT_VIDEO_PHOTOS: Final = 50
_WORDS: Final = {"manifest": "model file", "detector_file": "detector file", "contract": "crop contract"}
_SAMPLED: Final = f"Videos: {FRAMES_PER_S:g} frames per second are labeled. Add --every 1 to label all of them."


def label(options: LabelOptions, settings: InferenceSettings, check: Callable[[], object] = lambda: None) -> Run:
    """Label all inputs into `options.out`, resuming an earlier run.

    Args:
        check: called between batches and outputs; it raises `Stopped` if the run is to stop.
    Returns: what is printed, and stored as `run.json`. Raises: LabelingError and its subclasses, StartupError and its
    subclasses, ArtifactError.
    """
    settings = with_limits(settings)
    check_outputs(options.outputs)
    check_out(options.out)
    roots(options, {})  # An input that does not exist leaves no output folder.
    versions = {"mien": VERSION, "python": platform.python_version(), "system": platform.platform()}
    versions |= {"onnxruntime": onnxruntime.__version__, "opencv": cv2.__version__}
    versions |= {"numpy": np.__version__, "pillow": PIL.__version__}
    run: Run = {"versions": versions, "settings": {}, "inputs": [], "options": asdict(options), "outputs": []}
    run |= dict.fromkeys(("labeled_now", "remaining", "left", "workers"), 0) | {"seconds": 0.0, "seconds_labeling": 0.0}
    run |= {"stage_seconds": {}, "stopped": None}
    run["options"]["out"] = str(options.out)
    setup, executor = Setup(settings, options), None
    try:
        with contextlib.ExitStack() as cluster:
            if options.engine == "ray":
                from mien.app.labeling.cluster import RayTasks, connected

                executor = RayTasks(cluster.enter_context(connected(options)), setup)
                run["settings"] = executor.facts
            else:
                run["settings"] = facts_of(open_labeler(settings), options)
            out = options.out
            with output_lock(out), disk_errors(out), contextlib.closing(Journal(out)) as journal:
                try:
                    with Progress(Console(stderr=True, quiet=options.quiet)) as report:
                        _execute(journal, setup, executor, run, report, check)
                except Stopped:
                    run |= journal.count()
                    raise
    except Stopped as stop:
        run["stopped"] = str(stop)
    return run


def _execute(
    journal: Journal, setup: Setup, executor: Executor | None, run: Run, report: "Progress", check: Callable[[], object]
) -> None:
    """Find the inputs, label them, and write the outputs."""
    options, began, resumes = setup.options, time.perf_counter(), bool(journal.facts)
    outputs = options.outputs or list(DEFAULT_OUTPUTS)
    run["left"] = _find(journal, options, run, outputs)
    total, done = journal.progress()
    if resumes and done:
        report.say(f"Resuming: {done:,} of {counted(total, 'file')} already labeled.")
    if executor is None:
        executor = local_executor(setup, journal.facts, *_work(journal, options.limit))
    run["workers"] = executor.workers
    report.start(min(total, done + (options.limit or total)), done)
    labeling_began = time.perf_counter()
    try:
        with contextlib.closing(executor.run(_tasks(journal, options, report), journal.pictures)) as results:
            for part in results:
                check()
                journal.save(part)
                images = [result for result in part if result.is_image]
                run["labeled_now"] += len(images)
                for result in images:
                    for stage, milliseconds in result.timings_ms.items():
                        run["stage_seconds"][stage] = run["stage_seconds"].get(stage, 0.0) + milliseconds / 1000
                errors = sum(result.status == "error" for result in images)
                report.labeled(len(images), sum(len(result.faces) for result in images), errors)
    finally:
        run["seconds_labeling"] = round(time.perf_counter() - labeling_began, 3)
        total, done = journal.progress()
        run["remaining"] = total - done
    for name in outputs:
        check()
        report.writing(name)
        run["outputs"].append(str(write_output(name, journal).relative_to(journal.out)))
    run["outputs"].append(RUN_FILE)
    run["seconds"] = round(time.perf_counter() - began, 3)
    run |= journal.count()
    write_atomic(journal.out / RUN_FILE, json.dumps(run, indent=2, ensure_ascii=False) + "\n")


def _find(journal: Journal, options: LabelOptions, run: Run, outputs: list[str]) -> int:
    """Check the settings and the inputs, and store what is found; returns the number of files that have left."""
    facts, earlier = run["settings"], journal.facts
    if earlier and earlier != facts:
        raise LabelingError(_difference(options, earlier, facts))
    known: dict[str, str] = {} if options.replace else journal.settings.get("inputs", {})
    if options.files_from is None:
        given = roots(options, known)
    else:
        given = {"standard input" if options.files_from == "-" else os.path.abspath(options.files_from): ""}
    if missing := [path for path in known if path not in given]:
        raise LabelingError(
            f"{options.out} has the results of {', '.join(missing)}. Name these inputs, too, to keep them, add "
            "--replace to remove them, or choose another --out."
        )
    record_outputs(outputs, journal)
    left = journal.sync(scan(options, given), replace=options.replace)
    journal.put(facts=facts, options=run["options"], inputs=given)
    run["inputs"] = list(given)
    return left


def _difference(options: LabelOptions, earlier: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """What differs from the earlier run; of another model, its name says it."""
    names = [name for name in facts if facts[name] != earlier.get(name)]
    names = ["model"] if "model" in names else names
    changed = ", ".join(
        f"{_WORDS.get(name, name.replace('_', ' '))} {earlier.get(name) or 'unset'} -> {facts[name] or 'unset'}"
        for name in names
    )
    return (
        f"{options.out} holds a run with other settings: {changed}. Restore these, or choose another --out to label "
        "everything again."
    )


def _tasks(journal: Journal, options: LabelOptions, report: "Progress") -> Iterator[Task]:
    """Batches of photos, and videos, by name, until the limit is reached."""
    batch: list[Item] = []
    said = options.every is not None or options.per_second is not None
    part: dict[str, Any] = {"start_s": options.start, "end_s": options.end}
    for item in islice(journal.todo(), options.limit):
        if batch and (item.is_video or len(batch) == BATCH):
            yield batch
            batch = []
        if not item.is_video:
            batch.append(item)
            continue
        if not said:
            report.say(_SAMPLED)
            said = True
        if not is_url(item.path):
            report.expect(
                expected_samples(item.path, per_second=options.frames_per_s, every=options.every or 1, **part)
            )
        yield [item]
    if batch:
        yield batch


def _work(journal: Journal, limit: int | None) -> tuple[int, int]:
    """Numbers of long videos and of photos to label; short videos count as a few photos."""
    videos = photos = 0
    for item in islice(journal.todo(), limit):
        is_long = item.is_video and item.size > _SHORT_VIDEO_BYTES
        videos, photos = videos + is_long, photos + (0 if is_long else _SHORT_VIDEO_PHOTOS if item.is_video else 1)
    return videos, photos


class Progress:
    """Progress on standard error: a bar in a terminal, else a line every 30 seconds; nothing on a quiet console."""

    lines_s = 30.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._shown = time.monotonic()
        self._total = self._before = self._new = self._faces = self._errors = 0
        texts = ("{task.description}", "{task.fields[rate]} images/s", "{task.fields[faces]}")
        description, rate, faces = map(progress.TextColumn, texts)
        errors = progress.TextColumn("{task.fields[errors]}", style="red")
        done, left = progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
        columns = (description, progress.BarColumn(bar_width=None), done, rate, faces, errors, left)
        # Without one, it is a file, or a terminal that cannot move its cursor.
        self._has_bar = console.is_interactive and not console.quiet
        self._bar = progress.Progress(*columns, console=console, transient=True, disable=not self._has_bar)
        self._task = self._bar.add_task("looking for files", total=None, rate="-", faces="", errors="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def say(self, message: str) -> None:
        """Print a message."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def start(self, total: int, done: int) -> None:
        """Begin labeling; `done` of `total` are labeled already."""
        self._began, self._total, self._before = time.monotonic(), total, done
        self._bar.reset(self._task, total=total, completed=done, description="labeling")

    def expect(self, more: int) -> None:
        """Add the frames of a video to the total."""
        self._total += more
        self._bar.update(self._task, total=self._total)

    def labeled(self, images: int, faces: int, errors: int) -> None:
        """Show images that were labeled and committed together."""
        self._new, self._faces, self._errors = self._new + images, self._faces + faces, self._errors + errors
        rate, done = self._new / max(1e-9, time.monotonic() - self._began), self._before + self._new
        found, failed = counted(self._faces, "face"), counted(self._errors, "error")
        self._bar.update(self._task, completed=done, rate=f"{rate:.1f}", faces=found, errors=failed)
        if not self._has_bar and time.monotonic() - self._shown >= self.lines_s:
            self._shown = time.monotonic()
            # The length of a video may be unknown.
            left = f", {(self._total - done) / rate / 60:.0f} min left" if self._new and done <= self._total else ""
            self.say(f"{done:,} of {max(done, self._total):,} images, {found}, {failed}, {rate:.1f} images/s{left}")

    def writing(self, output: str) -> None:
        """Show that an output is being written."""
        if not self._has_bar:
            self.say(f"writing {output}")
        self._bar.update(self._task, description=f"writing {output}")
