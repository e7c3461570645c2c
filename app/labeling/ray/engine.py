"""Labeling on a cluster with Ray Data, in partitions.

mien label photos --out out --engine ray [--ray-address auto]

The driver scans, plans partitions and waits. Each actor labels one partition after another with
`app.labeling.engine`, using a journal on its local disk, and commits the rows as described in
`app.labeling.ray.partitions`. Ray transfers only keys and counts. Photos are read where they are labeled, so inputs,
output and model must have the same path on every machine.
"""

import contextlib
import importlib.util
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from mien.app.labeling.engine import GROUP
from mien.app.labeling.facts import resumed
from mien.app.labeling.files import DiskFull, LabelingError, clear_parts, disk_errors, output_lock
from mien.app.labeling.journal.ledger import Ledger
from mien.app.labeling.progress import Reporter
from mien.app.labeling.ray.actor import Labeler
from mien.app.labeling.ray.cluster import Task, actors, connected, gpu_share, roll_call
from mien.app.labeling.ray.partitions import (
    FILES_DIR,
    LABELS_DIR,
    Written,
    begin_run,
    drop_plans,
    read_written,
    write_plan,
)
from mien.app.labeling.records import Tally
from mien.app.labeling.request import RAY_OUTPUTS, Request
from mien.app.labeling.run import Outcome
from mien.app.labeling.scan import sources_of
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.settings import Settings

# A multiple of the engine's group size, so that a new run forms the same groups and batches as the local engine.
PARTITION: Final = 16 * GROUP
_MAX_BLOCKS: Final = 2_000


def check(request: Request) -> None:
    """Reject unsupported options. Raises: LabelingError."""
    others = [name for name in request.outputs if name not in RAY_OUTPUTS]
    if others:
        raise LabelingError(
            f"--engine ray writes only parquet, not {', '.join(others)}: leave out --write, or use the local engine."
        )
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        raise LabelingError("--engine ray: Ray Data is not installed. Run `pip install 'ray[data]' pyarrow`.")
    refused = {
        "--limit": request.limit is not None,
        "--check-hashes": request.check_hashes,
        "--min-face": request.min_face_px > 0,
        "--min-confidence": request.min_confidence > 0,
    }
    if given := [name for name, is_given in refused.items() if is_given]:
        raise LabelingError(f"--engine ray does not support {', '.join(given)}.")


def label_on_ray(request: Request, settings: Settings, report: Reporter, signals: Interrupts | None = None) -> Outcome:
    """Label all inputs into partitions of `request.out`, resuming where an earlier run stopped.

    Raises: LabelingError and its subclasses.
    """
    request = replace(request, out=request.out.absolute())
    out, began = request.out, time.perf_counter()
    outcome = Outcome(Tally(), written=[out / LABELS_DIR, out / FILES_DIR])
    with output_lock(out), disk_errors(out):
        clear_parts(out)
        ledger = Ledger(out)
        try:
            for count in ledger.add(sources_of(request, ledger)):
                report.scanned(count)
            task = Task(request, begin_run(out), settings)
            with connected(request.ray_address, request.workers) as ray, _signals(signals or Interrupts()):
                _label(ray, ledger, task, report, outcome)
        except Stopped as stop:
            outcome.stopped = stop.name
        finally:
            outcome.statuses, outcome.labels = dict(ledger.statuses), dict(ledger.labels)
            ledger.close()
            drop_plans(out)
    outcome.total_seconds = time.perf_counter() - began
    return outcome


def _label(ray: Any, ledger: Ledger, task: Task, report: Reporter, outcome: Outcome) -> None:
    out, share = task.request.out, gpu_share(ray, task)
    earlier = {} if task.request.new_run else ledger.earlier_facts()
    task = replace(task, settings=resumed(task.settings, earlier))
    outcome.facts = roll_call(ray, task, share)
    task = replace(task, settings=resumed(task.settings, outcome.facts))
    for folder in (LABELS_DIR, FILES_DIR):
        (out / folder).mkdir(exist_ok=True)
    if aside := ledger.settle(outcome.facts, new_run=task.request.new_run):
        report.say(f"Starting a new run. The partitions of the earlier run are kept in {aside}.")
    outcome.total, outcome.before = ledger.counts()
    if outcome.before:
        report.say(f"Resuming: {outcome.before:,} of {outcome.total:,} files are already labeled.")
    size = task.request.partition_files or PARTITION
    keys = [write_plan(out, group, outcome.facts) for group in ledger.missing(size)]
    report.start(outcome.total, outcome.before)
    began = time.perf_counter()
    outcome.workers = max(1, min(len(keys), actors(ray, task)))
    for written in _labeled(ray, task, keys, outcome.facts, (outcome.workers, share)):
        _count(written, outcome.tally, report)
        if not ledger.take(written):
            raise LabelingError(
                f"partition {written.key}: some of its inputs are also in another partition. Rerun the same command."
            )
    outcome.seconds = time.perf_counter() - began
    total, done = ledger.counts()
    if total != done:
        raise LabelingError(f"{total - done:,} of {total:,} files are in no partition. Rerun the same command.")


def _count(written: Written, tally: Tally, report: Reporter) -> None:
    tally.images += sum(written.statuses.values())
    tally.faces += sum(written.labels.values())
    for stage, seconds in written.seconds.items():
        tally.spend(stage, seconds)
    report.partition(len(written.inputs), sum(written.labels.values()), written.errors)


@contextlib.contextmanager
def _signals(signals: Interrupts) -> Iterator[None]:
    """Stop the run on Ctrl-C and SIGTERM; committed partitions are kept, and others are labeled again.

    Must be entered after Ray is started, because Ray installs its own handler.
    """
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _labeled(
    ray: Any, task: Task, keys: list[str], facts: dict[str, str], pool: tuple[int, float]
) -> Iterator[Written]:
    """Committed partitions, in any order. Raises: the error of a worker."""
    if not keys:
        return
    count, share = pool
    rows = ray.data.from_items([{"key": key} for key in keys], override_num_blocks=min(len(keys), _MAX_BLOCKS))
    done = rows.map_batches(
        Labeler,
        fn_constructor_kwargs={
            "settings": task.settings,
            "request": task.request,
            "run": task.run,
            "facts": facts,
        },
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=count, initial_size=count),
        num_cpus=1,
        num_gpus=share or None,
    )
    for batch in done.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
        for key, trouble in zip(batch["key"], batch["trouble"], strict=True):
            if trouble:
                kind, message = json.loads(str(trouble))
                raise (DiskFull if kind == "DiskFull" else LabelingError)(message)
            written = read_written(task.request.out, str(key))
            if written is None:
                raise LabelingError(
                    f"partition {key} was committed, but the driver cannot find it. Do all machines share the folder "
                    f"{task.request.out}?"
                )
            yield written
