"""One run of `mien label`: lock, scan, label, write the outputs.

mien label samples/photos --out out
"""

import contextlib
import json
import os
import platform
import time
from typing import Final

import cv2
import numpy as np
import onnxruntime
import PIL

from mien.app import VERSION
from mien.app.inference.runtime.cpu_count import cores
from mien.app.labeling.engine import Run
from mien.app.labeling.facts import OtherRun, facts_of, open_pipeline, resumed
from mien.app.labeling.files import RUN_FILE, check_out, clear_parts, disk_errors, output_lock
from mien.app.labeling.images import ANNOTATED, CROPS
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.outputs import check_outputs, images_for, with_earlier, write_output
from mien.app.labeling.progress import Reporter
from mien.app.labeling.scan import printable, scan
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.labeling.store import is_url
from mien.app.labeling.summary import Outcome, accuracy_by_reason
from mien.app.labeling.view import NoJournal, open_view
from mien.app.settings import Settings
from mien.app.wording import counted
from mien.data.atomic import write_atomic

_RECORDED: Final = (
    "recursive", "ignore", "hidden", "symlinks", "every", "per_second", "scenes", "limit", "annotated_px",
    "min_face_px", "min_confidence", "spreadsheet_safe",
)  # fmt: skip


def label(options: LabelOptions, settings: Settings, report: Reporter, signals: Interrupts | None = None) -> Outcome:
    """Label all inputs into `options.out`, resuming an earlier run; a signal stops it early.

    Raises: LabelingError and its subclasses, StartupError and its subclasses, ArtifactError.
    """
    signals = signals or Interrupts()
    check_outputs(options.outputs)
    check_out(options.out)
    outcome = Outcome(workers=options.workers or cores())
    try:
        if not options.new_run:
            with contextlib.suppress(NoJournal), contextlib.closing(open_view(options.out)) as view:
                settings = resumed(settings, view.facts)
        pipeline = open_pipeline(settings)
        outcome.facts = facts_of(pipeline)
        outcome.accuracy = accuracy_by_reason(pipeline.classifier.manifest)
        with output_lock(options.out), disk_errors(options.out):
            clear_parts(options.out)
            with contextlib.closing(Journal(options.out)) as journal:
                run = Run(journal, options, pipeline, outcome, report=report, signals=signals)
                try:
                    _run(run)
                finally:
                    outcome.count(journal, run.images)
    except Stopped as stop:
        outcome.stopped = str(stop)
    return outcome


def _run(run: Run) -> None:
    """Scan, label, and write the outputs."""
    journal, outcome, began = run.journal, run.outcome, time.perf_counter()
    outputs = _scan(run)
    run.images = images_for(outputs)
    journal.relabel_deleted(run.images & (ANNOTATED | CROPS))
    outcome.total, outcome.before = journal.progress()
    if outcome.before:
        run.report.say(f"Resuming: {outcome.before:,} of {counted(outcome.total, 'image')} already labeled.")
    run.report.start(min(outcome.total, outcome.before + (run.options.limit or outcome.total)), outcome.before)
    labeling_began = time.perf_counter()
    try:
        complete = run.label()
    finally:
        outcome.seconds = time.perf_counter() - labeling_began
    run.signals.check()
    if complete:
        journal.remove_stale()
    for name in outputs:
        run.signals.check()
        run.report.writing(name)
        outcome.written += write_output(name, journal)
    outcome.total_seconds = time.perf_counter() - began
    outcome.count(journal, run.images)
    _write_run_file(run)
    outcome.suggest(run.options.out)


def _scan(run: Run) -> list[str]:
    """Check the settings, and store the inputs of a scan. Returns: outputs to write. Raises: OtherRun, ForeignFile."""
    journal, options, report, facts = run.journal, run.options, run.report, run.outcome.facts
    if journal.facts and journal.facts != facts and not options.new_run:
        raise OtherRun(options.out, journal.facts, facts)
    asked = options.outputs or list(DEFAULT_OUTPUTS)
    outputs = with_earlier(asked, journal)
    if more := outputs[len(asked) :]:
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
    if journal.get("drawing") not in (None, options.drawing):
        report.say("Annotated copies, if any, are written again: their size or the faces drawn on them changed.")
        journal.redraw(ANNOTATED)
    limits = f"{run.pipeline.settings.max_bytes} {run.pipeline.settings.max_pixels}"
    if journal.get("limits") not in (None, limits) and (again := journal.retry("too_large")):
        report.say(f"Retrying {counted(again, 'file')} above the earlier limits.")
    if options.check_hashes:
        changed = journal.recheck()
        report.say(f"{counted(changed, 'file')} with changed content, although size and time are the same.")
    journal.put_facts(facts)
    journal.put("outputs", json.dumps(outputs))
    journal.put("inputs", json.dumps(_inputs(options)))
    journal.put("drawing", options.drawing)
    journal.put("filter", json.dumps([options.min_face_px, options.min_confidence]))
    journal.put("limits", limits)
    journal.put("spreadsheet_safe", str(options.spreadsheet_safe))
    return outputs


def _inputs(options: LabelOptions) -> list[str]:
    """Inputs as full paths or URLs, or the path of a list."""
    if options.files_from == "-":
        return ["standard input"]
    paths = options.inputs if options.files_from is None else [options.files_from]
    return [path if is_url(path) else printable(os.path.abspath(path)) for path in paths]


def _write_run_file(run: Run) -> None:
    """Write `run.json`: versions, settings and outcome."""
    out, outcome = run.journal.out, run.outcome
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
        "inputs": _inputs(run.options),
        "options": {name: getattr(run.options, name) for name in _RECORDED},
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
