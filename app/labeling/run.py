"""One run of `mien label`: lock, scan, label, write the outputs.

mien label samples/photos --out out
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import onnxruntime
import PIL

from mien.app import VERSION
from mien.app.inference.pipeline import Pipeline
from mien.app.inference.runtime.cpu_count import cores
from mien.app.labeling.engine import Engine, Watcher
from mien.app.labeling.facts import OtherRun, changes, facts_of, limits_of, open_pipelines, resumed
from mien.app.labeling.files import clear_parts, disk_errors, output_lock, remove_files
from mien.app.labeling.journal import Journal, View, earlier_facts
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.outputs import check_outputs, load_output, products_of, with_earlier, write_output
from mien.app.labeling.products import ANNOTATED, ANNOTATED_DIR, CROPS, CROPS_DIR, annotated_path, crop_path
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import file_sha256
from mien.app.labeling.records import Tally
from mien.app.labeling.request import Request
from mien.app.labeling.scan import printable, sources_of
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.settings import Settings
from mien.data.atomic import write_atomic

RUN_FILE: Final = "run.json"
_RECORDED: Final = (
    "recursive", "ignore", "hidden", "symlinks", "every", "per_second", "limit", "annotated_px", "min_face_px",
    "min_confidence",
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """Outcome of a run for the summary and the exit code.

    Attributes:
        seconds: time for labeling only.
        total_seconds: time including the scan and writing the outputs, after the models are opened.
        remaining: number of unlabeled images after a limit or a stop.
    """

    tally: Tally
    total: int = 0
    before: int = 0
    remaining: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    stopped: str | None = None
    statuses: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    workers: int = 1
    written: list[Path] = field(default_factory=list)


def label(request: Request, settings: Settings, report: Reporter, signals: Interrupts | None = None) -> Outcome:
    """Label all inputs into `request.out`, resuming an earlier run; a signal stops it early.

    Raises: LabelingError and its subclasses, StartupError and its subclasses, ArtifactError.
    """
    request = request.with_default_outputs()
    check_outputs(request.outputs)
    outcome = Outcome(Tally())
    try:
        _run(request, settings, report, outcome, signals or Interrupts())
    except Stopped as stop:
        outcome.stopped = stop.name
    return outcome


def _run(request: Request, settings: Settings, report: Reporter, outcome: Outcome, signals: Interrupts) -> None:
    earlier = {} if request.new_run else earlier_facts(request.out)
    pipelines = open_pipelines(resumed(settings, earlier), request.workers or cores())
    began = time.perf_counter()
    outcome.facts, outcome.workers = facts_of(pipelines[0]), len(pipelines)
    with output_lock(request.out), disk_errors(request.out):
        clear_parts(request.out)
        with closing(Journal(request.out)) as journal:
            try:
                _check_settings(journal, request, outcome.facts)
                outputs = _outputs(journal, request, report)
                _scan(journal, request, pipelines[0], report)
                journal.put("facts", json.dumps(outcome.facts))
                journal.put("outputs", json.dumps(outputs))
                journal.put("inputs", json.dumps([printable(path) for path in _inputs(request)]))
                complete = _label(journal, request, pipelines, products_of(outputs), report, outcome, signals)
                if signals.received is None:
                    _write(journal, outputs, report, outcome, signals, complete=complete)
                    outcome.total_seconds = time.perf_counter() - began
                    _write_run_file(journal, request, outcome)
                outcome.stopped = signals.received
            finally:
                _count(request.out, outcome)


def _inputs(request: Request) -> list[str]:
    """Inputs as full paths, or the path of a list."""
    if request.files_from is not None:
        return ["standard input" if request.files_from == "-" else os.path.abspath(request.files_from)]
    return [os.path.abspath(path) for path in request.inputs]


def _check_settings(journal: Journal, request: Request, facts: dict[str, str]) -> None:
    """Check that an earlier run had the same settings. Raises: OtherRun."""
    earlier = journal.facts()
    if earlier and earlier != facts and not request.new_run:
        raise OtherRun(request.out, changes(earlier, facts))


def _outputs(journal: Journal, request: Request, report: Reporter) -> tuple[str, ...]:
    """Outputs to write: requested ones, and those of earlier runs. Raises: ForeignFile."""
    folder = OutputFolder(request.out, journal)
    for name in request.outputs:
        folder.check(load_output(name).TARGETS)
        if name in ("classes", "class-links"):
            folder.check_tree("classes")
    earlier = json.loads(journal.get("outputs") or "[]")
    outputs = with_earlier(request.outputs, earlier, request.out)
    if more := outputs[len(request.outputs) :]:
        report.say(f"Also updating outputs of an earlier run: {', '.join(more)}.")
    return outputs


def _scan(journal: Journal, request: Request, pipeline: Pipeline, report: Reporter) -> None:
    kept = journal.keep_copy() if request.new_run and journal.facts() else None
    try:
        for count in journal.scan(sources_of(request, journal), new_run=request.new_run):
            report.scanned(count)
    except BaseException:
        if kept is not None:  # nothing was deleted
            kept.unlink(missing_ok=True)
        raise
    if kept is not None:
        report.say(f"Starting a new run. The journal of the earlier run is kept as {kept}.")
    if journal.get("drawing") not in (None, request.drawing):
        report.say("Annotated copies, if any, are written again: their size or the faces drawn on them changed.")
        journal.forget_products(ANNOTATED)
    journal.put("drawing", request.drawing)
    journal.put("filter", json.dumps([request.min_face_px, request.min_confidence]))
    limits = limits_of(pipeline)
    if journal.get("limits") not in (None, limits) and (again := journal.retry("too_large")):
        report.say(f"{again:,} files were above the earlier limits and are retried.")
    journal.put("limits", limits)
    if request.check_hashes:
        changed = journal.recheck(file_sha256)
        report.say(f"{changed:,} files have changed since they were labeled, although size and time are the same.")


def _label(
    journal: Journal,
    request: Request,
    pipelines: list[Pipeline],
    products: int,
    report: Reporter,
    outcome: Outcome,
    signals: Interrupts,
) -> bool:
    """Label the remaining inputs; returns whether everything is labeled."""
    _forget_lost_images(journal, products)
    outcome.total, outcome.before = journal.counts()
    if outcome.before:
        report.say(f"Resuming: {outcome.before:,} of {outcome.total:,} images are already labeled.")
    engine = Engine(journal, request, pipelines, products, Watcher(report.image, report.expect))
    limit = outcome.total if request.limit is None else min(outcome.total, outcome.before + request.limit)
    report.start(limit, outcome.before)
    began = time.perf_counter()
    with signals.calls(engine.stop):
        engine.run()
    outcome.tally, outcome.seconds = engine.tally, time.perf_counter() - began
    return not engine.limit_reached


def _write(
    journal: Journal,
    outputs: tuple[str, ...],
    report: Reporter,
    outcome: Outcome,
    signals: Interrupts,
    *,
    complete: bool,
) -> None:
    with closing(View(journal.out)) as view:
        if complete:
            _remove_stale_images(journal, view)
        for name in outputs:
            signals.check()
            report.writing(name)
            targets = write_output(name, view, OutputFolder(journal.out, journal))
            outcome.written += [journal.out / target for target in targets]


def _remove_stale_images(journal: Journal, view: View) -> None:
    """Remove recorded annotated copies and crops of inputs that no longer exist."""
    journal.forget_absent_products()
    for folder, product in ((ANNOTATED_DIR, ANNOTATED), (CROPS_DIR, CROPS)):
        stale = journal.stale(folder, (name for _, name in _image_names(view, product)))
        remove_files(journal.out, stale)
        journal.disown(stale)


def _forget_lost_images(journal: Journal, products: int) -> None:
    """Mark images whose annotated copy or crops were deleted, so that these are written again."""
    lost = {name for name in journal.files() if not os.path.lexists(os.path.join(journal.out, name))}
    if not lost:
        return
    with closing(View(journal.out)) as view:
        for product in (ANNOTATED, CROPS):
            if products & product:
                journal.forget_products(product, {row for row, name in _image_names(view, product) if name in lost})


def _image_names(view: View, product: int) -> Iterator[tuple[int, str]]:
    """Journal row and name of the annotated copies or crops of all inputs."""
    for image in view.images():
        if image.status not in ("ok", "no_face"):
            continue
        if product == ANNOTATED:
            yield image.row, annotated_path(image.name, image.frame)
        else:
            for face in image.faces:
                yield image.row, crop_path(image.name, image.frame, face.number)


def _count(out: Path, outcome: Outcome) -> None:
    with closing(View(out)) as view:
        outcome.statuses, outcome.labels, outcome.remaining = view.counts(), view.labels(), view.remaining()


def _write_run_file(journal: Journal, request: Request, outcome: Outcome) -> None:
    """Write `run.json`: versions, settings and outcome."""
    _count(journal.out, outcome)
    facts = {
        "versions": _versions(),
        "settings": outcome.facts,
        "inputs": [printable(path) for path in _inputs(request)],
        "options": {name: getattr(request, name) for name in _RECORDED},
        "outputs": [str(path.relative_to(journal.out)) for path in outcome.written],
        "images": outcome.statuses,
        "faces": outcome.labels,
        "labeled_now": outcome.tally.images,
        "remaining": outcome.remaining,
        "seconds": round(outcome.total_seconds, 3),
        "seconds_labeling": round(outcome.seconds, 3),
        "workers": outcome.workers,
    }
    journal.claim(RUN_FILE, [RUN_FILE])
    write_atomic(journal.out / RUN_FILE, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    outcome.written.append(journal.out / RUN_FILE)


def _versions() -> dict[str, str]:
    libraries = {"mien": VERSION, "python": platform.python_version(), "system": platform.platform()}
    libraries |= {"onnxruntime": onnxruntime.__version__, "opencv": cv2.__version__}
    return libraries | {"numpy": np.__version__, "pillow": PIL.__version__}
