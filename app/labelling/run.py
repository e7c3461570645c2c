"""How does `mien label` go from arguments to outputs? Lock, scan, label, render; read from top to bottom.

python -m app label samples/photos --out out
"""

import contextlib
import hashlib
import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import cv2

from app import VERSION
from app.classify import create_classifier
from app.cores import cores
from app.detect import create_detector
from app.detect.weights import find_yunet
from app.labelling.containers import Sampling
from app.labelling.engine import Engine, Limits, Watcher
from app.labelling.files import LabellingError, clear_parts, disk_errors, output_lock
from app.labelling.journal import JOURNAL_NAME, Journal
from app.labelling.outputs import DEFAULT, load_output, output_names
from app.labelling.products import ProductOptions
from app.labelling.progress import Reporter
from app.labelling.prune import prune_products
from app.labelling.records import Source, Tally
from app.labelling.scan import ScanOptions, roots_of, scan_list, scan_roots
from app.labelling.view import View
from app.labelling.worker import Job
from app.pipeline import Pipeline
from app.settings import Settings
from data.contract import contract_id
from models.manifest import sha256_of


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of `mien label` asks for.

    inputs: folders, files and patterns; or `listed`, names one by one.
    outputs: names of `output_names`; limit: pictures at most in this call; workers: threads, 0 for one per core.
    check_hashes: read again what is done, and label it anew where its bytes differ though size and time do not.
    """

    out: Path
    inputs: tuple[str, ...] = ()
    listed: Callable[[], Iterator[str]] | None = None
    outputs: tuple[str, ...] = DEFAULT
    scan: ScanOptions = field(default_factory=ScanOptions)
    sampling: Sampling = field(default_factory=Sampling)
    products: ProductOptions = field(default_factory=ProductOptions)
    limit: int | None = None
    workers: int = 0
    check_hashes: bool = False


@dataclass(slots=True)
class Outcome:
    """How a run ended, for the summary and the exit code.

    seconds: labelling alone; total_seconds: with finding the files and writing the outputs.
    """

    tally: Tally
    total: int
    before: int
    seconds: float = 0.0
    total_seconds: float = 0.0
    stopped: str | None = None
    statuses: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    detector: str = ""
    model: str = ""
    provider: str = ""
    workers: int = 1
    written: list[Path] = field(default_factory=list)


def check_outputs(names: tuple[str, ...]) -> None:
    """Refuse outputs that do not exist or cannot be written here. Raises: LabellingError."""
    for name in names:
        if name not in output_names():
            raise LabellingError(f"output {name!r}: expected one or several of {', '.join(output_names())}.")
        obstacle = load_output(name).check()
        if obstacle is not None:
            raise LabellingError(obstacle)
    if "classes" in names and "class-links" in names:
        raise LabellingError("outputs classes and class-links fill the same folder: choose one.")


def sources_of(request: Request) -> Iterator[Source]:
    """Every input of a request. Raises: NoInput."""
    if request.listed is not None:
        return scan_list(request.listed(), request.scan)
    return scan_roots(roots_of(request.inputs), request.scan)


def label(request: Request, settings: Settings, report: Reporter) -> Outcome:
    """Label all inputs into `request.out`, going on where an earlier run stopped.

    Raises: LabellingError and its kinds, StartupError and its kinds, ArtefactError.
    """
    check_outputs(request.outputs)
    sources = sources_of(request)
    with output_lock(request.out), disk_errors(request.out):
        workers = request.workers or cores()
        pipelines = open_pipelines(settings, workers)
        clear_parts(request.out)
        journal = _open_journal(request.out, facts_of(pipelines[0]), report)
        began = time.perf_counter()
        try:
            _scan(journal, request, sources, report)
            outcome = _label(journal, request, pipelines, report)
            outcome.total_seconds = time.perf_counter() - began
            return outcome
        finally:
            journal.close()


def open_pipelines(settings: Settings, workers: int) -> list[Pipeline]:
    """One pipeline per worker: detectors of their own, one model for all, one thread per inference."""
    cv2.setNumThreads(1)  # workers fill the cores; OpenCV's own threads would only take turns with them
    alone = settings.model_copy(update={"threads": 1})
    classifier = create_classifier(alone)
    return [Pipeline(create_detector(alone), classifier, alone) for _ in range(workers)]


def facts_of(pipeline: Pipeline) -> dict[str, str]:
    """All that a result depends on beside the picture: another value of any of these is another run."""
    settings, manifest = pipeline.settings, pipeline.classifier.manifest
    yunet = find_yunet(settings.models_dir) if pipeline.detector.name == "yunet" else None
    return {
        "version": VERSION,
        "model": manifest.name,
        "graphs": hashlib.sha256(
            json.dumps({name: graph.sha256 for name, graph in sorted(manifest.graphs.items())}).encode()
        ).hexdigest()[:16],
        "temperature": f"{manifest.temperature:.6g}",
        "abstain_threshold": f"{manifest.abstain_threshold:.6g}",
        "precision": pipeline.classifier.precision,
        "provider": pipeline.classifier.provider,
        "contract": contract_id(),
        "detector": pipeline.detector.name,
        "detector_file": sha256_of(yunet)[:16] if yunet else "",
        "detection": f"{settings.detection_threshold:g} {settings.detection_px} {settings.detection_max_px} "
        f"{settings.find_turned} {settings.min_face_px:g} {settings.max_faces}",
        "limits": f"{settings.max_bytes} {settings.max_pixels}",
    }


_SPOKEN: Final = {"graphs": "model file", "detector_file": "detector file", "contract": "crop contract"}


def _open_journal(out: Path, facts: dict[str, str], report: Reporter) -> Journal:
    """The journal to go on with; one of another model or setting is set aside, and that is said."""
    journal = Journal(out)
    earlier = journal.facts()
    if earlier and earlier != facts:
        changed = [name for name in facts if facts[name] != earlier.get(name)]
        words = ", ".join(
            f"{_SPOKEN.get(name, name)} {earlier.get(name) or 'unset'} -> {facts[name] or 'unset'}" for name in changed
        )
        journal.close()
        aside = journal.path.with_name("journal.previous.sqlite3")
        journal.path.replace(aside)
        for ending in ("-wal", "-shm"):
            journal.path.with_name(JOURNAL_NAME + ending).unlink(missing_ok=True)
        report.say(f"A new run is started, as this differs from the one in {out}: {words}. The old journal is {aside}.")
        journal = Journal(out)
    journal.put("facts", json.dumps(facts))
    return journal


def _scan(journal: Journal, request: Request, sources: Iterator[Source], report: Reporter) -> None:
    journal.begin_session()
    for count in journal.add_sources(sources):
        report.scanned(count)
    options = repr(request.products)
    if journal.get("products") not in (None, options):
        report.say("Pictures are written anew, as their size or quality was changed.")
        journal.query("UPDATE items SET products=0")
    journal.put("products", options)
    if request.check_hashes:
        _recheck(journal, report)
    journal.settle()


def _recheck(journal: Journal, report: Reporter) -> None:
    changed = 0
    for row, path, stored in journal.hashes():
        with contextlib.suppress(OSError):  # what cannot be read now is met again by the workers
            if sha256_of(Path(path)) == stored:
                continue
        journal.forget_results(row)
        changed += 1
    report.say(f"{changed:,} files have other bytes than when they were labelled, with size and time unchanged.")


def _label(journal: Journal, request: Request, pipelines: list[Pipeline], report: Reporter) -> Outcome:
    total, done = journal.counts()
    if done:
        report.say(f"Going on: {done:,} of {total:,} pictures are done already.")
    outcome = Outcome(Tally(), total, done, workers=len(pipelines))
    classifier = pipelines[0].classifier
    outcome.model, outcome.detector = classifier.manifest.name, pipelines[0].detector.name
    outcome.provider = classifier.provider
    products = 0
    for name in request.outputs:
        products |= load_output(name).PRODUCTS
    limits = Limits(request.limit, len(pipelines), pipelines[0].settings.max_bytes, request.sampling)
    watcher = Watcher(report.picture, report.expect)
    engine = Engine(journal, Job(request.out, request.products), limits, products, watcher)
    report.start(total if request.limit is None else min(total, done + request.limit), done)
    began = time.perf_counter()
    with _stop_on_signals(engine) as signals:
        engine.run(pipelines)
    outcome.tally, outcome.seconds = engine.tally, time.perf_counter() - began
    outcome.stopped = signals[0] if signals else None
    _finish(request, outcome, report, complete=not engine.limit_reached)
    return outcome


@contextlib.contextmanager
def _stop_on_signals(engine: Engine) -> Iterator[list[str]]:
    """Let the first Ctrl-C or SIGTERM end the run between two groups; a second one ends it at once."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)
        engine.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(request: Request, outcome: Outcome, report: Reporter, *, complete: bool) -> None:
    """Render the outputs; after a stop they are left as they are, for the next run to write."""
    view = View(request.out)
    try:
        outcome.statuses, outcome.labels = view.counts(), view.labels()
        if outcome.stopped:
            return
        if complete:
            prune_products(view, request.out)
        for name in request.outputs:
            report.writing(name)
            outcome.written += load_output(name).render(view, request.out)
    except sqlite3.OperationalError as error:
        raise LabellingError(f"journal: {error}") from error
    finally:
        view.close()
