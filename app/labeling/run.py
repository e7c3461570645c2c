"""One run of `mien label`: find the inputs, label them, commit the results, write the outputs.

mien label samples/photos --out out
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import cv2
import numpy as np
import onnxruntime
import PIL

from mien.app import VERSION
from mien.app.labeling.corrections import Corrections
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
from mien.app.labeling.files import RUN_FILE, LabelingError, check_out, clear_parts, disk_errors, output_lock
from mien.app.labeling.inputs import Item, roots, walk
from mien.app.labeling.journal import InputsGone, Journal
from mien.app.labeling.options import DEFAULT_OUTPUTS, SAMPLED, LabelOptions
from mien.app.labeling.outputs import check_outputs, images_for, record_outputs, write_output
from mien.app.labeling.progress import Reporter
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.labeling.store import is_url
from mien.app.labeling.summary import next_steps
from mien.app.settings import InferenceSettings
from mien.app.video.reader import expected_samples
from mien.app.wording import counted
from mien.data.atomic import write_atomic

Run = dict[str, Any]
_SHORT_VIDEO_BYTES: Final = 5_000_000
_SHORT_VIDEO_PHOTOS: Final = 50
_WORDS: Final = {"graphs": "model file", "detector_file": "detector file", "contract": "crop contract"}


class OtherRun(LabelingError):
    """The output folder holds a run with other settings."""


def label(
    options: LabelOptions, settings: InferenceSettings, report: Reporter, signals: Interrupts | None = None
) -> Run:
    """Label all inputs into `options.out`, resuming an earlier run; a signal stops it early.

    Returns: what is printed, and stored as `run.json`. Raises: LabelingError and its subclasses, StartupError and its
    subclasses, ArtifactError.
    """
    signals, settings = signals or Interrupts(), with_limits(settings)
    check_outputs(options.outputs)
    check_out(options.out)
    run: Run = _about(options)
    try:
        setup = Setup(settings, options)
        with contextlib.ExitStack() as cluster:
            executor: Executor | None = None
            if options.engine == "ray":
                from mien.app.labeling.cluster import RayTasks, connected

                ray = cluster.enter_context(connected(options))
                cluster.enter_context(signals.installed())  # Ray installs its own handlers when it starts
                executor = RayTasks(ray, setup)
                run["settings"] = executor.facts
            else:
                run["settings"] = facts_of(open_labeler(settings), options)
            with output_lock(options.out), disk_errors(options.out):
                clear_parts(options.out)
                with contextlib.closing(Journal(options.out)) as journal:
                    try:
                        _execute(journal, setup, executor, run, report, signals)
                    finally:
                        _count(journal, run)
    except Stopped as stop:
        run["stopped"] = str(stop)
    return run


def _execute(
    journal: Journal, setup: Setup, executor: Executor | None, run: Run, report: Reporter, signals: Interrupts
) -> None:
    """Find the inputs, label them, and write the outputs."""
    options, began, out = setup.options, time.perf_counter(), journal.out
    outputs = options.outputs or list(DEFAULT_OUTPUTS)
    run["left"] = _find(journal, options, run, outputs, report)
    total, done = journal.progress()
    if done:
        report.say(f"Resuming: {done:,} of {counted(total, 'file')} already labeled.")
    if executor is None:
        videos, photos = _work(journal, options.limit)
        executor = local_executor(setup, journal.facts, videos, photos)
    run["workers"] = executor.workers
    report.start(min(total, done + (options.limit or total)), done)
    labeling_began = time.perf_counter()
    try:
        with contextlib.closing(executor.run(_tasks(journal, options, report))) as results:
            for part in results:
                signals.check()
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
    for name in outputs:
        signals.check()
        report.writing(name)
        run["outputs"] += [str(path.relative_to(out)) for path in write_output(name, journal)]
    run["outputs"].append(RUN_FILE)
    run["seconds"] = round(time.perf_counter() - began, 3)
    _count(journal, run)
    run["next"] = next_steps(run, out)
    write_atomic(out / RUN_FILE, json.dumps(run, indent=2, ensure_ascii=False) + "\n")


def _about(options: LabelOptions) -> Run:
    """The record of a run before it begins."""
    versions = {"mien": VERSION, "python": platform.python_version(), "system": platform.platform()}
    versions |= {"onnxruntime": onnxruntime.__version__, "opencv": cv2.__version__}
    versions |= {"numpy": np.__version__, "pillow": PIL.__version__}
    record = {"versions": versions, "settings": {}, "inputs": [], "options": options.recorded, "outputs": []}
    numbers = {"labeled_now": 0, "remaining": 0, "left": 0, "seconds": 0.0, "seconds_labeling": 0.0, "workers": 0}
    return record | numbers | {"stage_seconds": {}, "stopped": None, "next": {}}


def _find(journal: Journal, options: LabelOptions, run: Run, outputs: list[str], report: Reporter) -> int:
    """Check the settings and the inputs, and store what is found; returns the number of files that have left.

    Raises: OtherRun, InputsGone, ForeignFile, NoInput.
    """
    facts, earlier = run["settings"], journal.facts
    if earlier and earlier != facts:
        raise OtherRun(_difference(options, earlier, facts))
    known: dict[str, str] = {} if options.replace else journal.settings.get("inputs", {})
    given = roots(options, known) if options.files_from is None else {_list_of(options.files_from): ""}
    if missing := [path for path in known if path not in given]:
        if not options.add:
            raise InputsGone(
                f"{options.out} has the results of {', '.join(missing)}. Add --add to keep them beside the new ones, "
                "--replace to remove them, or choose another --out."
            )
        given = known | given
    record_outputs(outputs, journal)
    left = journal.sync(
        walk(options, known),
        images_for(outputs),
        report.scanned,
        keep=_keeper(options, known),
        replace=options.replace or options.add,
    )
    journal.put(facts=facts, options=options.recorded, inputs=given)
    run["inputs"] = list(given)
    return left


def _list_of(source: str) -> str:
    return "standard input" if source == "-" else os.path.abspath(source)


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


def _keeper(options: LabelOptions, known: Mapping[str, str]) -> Callable[[bytes], bool]:
    """Whether an input that is not found is kept, by its path: with --add, those of other inputs are."""
    if not options.add:
        return lambda _: False
    given = roots(options, known) if options.files_from is None else {}
    folders = tuple(os.fsencode(os.path.join(path, "")) for path in given)
    return lambda path: not path.startswith(folders) and os.fsdecode(path) not in given


def _tasks(journal: Journal, options: LabelOptions, report: Reporter) -> Iterator[Task]:
    """Batches of photos, and videos, by name, until the limit is reached."""
    batch: list[tuple[Item, int]] = []
    said = not options.samples_by_default
    for item, copies in islice(journal.todo(), options.limit):
        if item.is_video:
            if batch:
                yield batch
                batch = []
            if not said:
                report.say(SAMPLED)
                said = True
            if not is_url(item.path):
                part: dict[str, Any] = {"start_s": options.start, "end_s": options.end}
                report.expect(
                    expected_samples(item.path, per_second=options.frames_per_s, every=options.every or 1, **part)
                )
            yield [(item, copies)]
            continue
        batch.append((item, copies))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _work(journal: Journal, limit: int | None) -> tuple[int, int]:
    """Numbers of long videos and of photos to label; short videos count as a few photos."""
    videos = photos = 0
    for item, _ in islice(journal.todo(), limit):
        is_long = item.is_video and item.size > _SHORT_VIDEO_BYTES
        videos, photos = videos + is_long, photos + (0 if is_long else _SHORT_VIDEO_PHOTOS if item.is_video else 1)
    return videos, photos


def _count(journal: Journal, run: Run) -> None:
    """Count the results, and the decisions of the review."""
    run |= journal.count()
    total, done = journal.progress()
    reviewed, corrected = Corrections(journal.out).count(journal)
    run |= {"remaining": total - done, "reviewed": reviewed, "corrected": corrected}
