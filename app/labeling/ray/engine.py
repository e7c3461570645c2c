"""Labeling on a cluster with Ray Data, in partitions.

mien label photos --out out --engine ray [--ray-address auto]

The driver scans, plans partitions and waits. Each actor labels one partition after another with
`app.labeling.engine`, using a journal on its local disk, and commits the rows as described in
`app.labeling.ray.partitions`. Ray transfers only keys and counts. Photos are read where they are labeled, so inputs,
output and model must have the same path on every machine.
"""

import importlib.util
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from mien.app.inference.pipeline import with_absolute_paths
from mien.app.labeling.engine import BATCH
from mien.app.labeling.facts import resumed
from mien.app.labeling.files import (
    FILES_DIR,
    LABELS_DIR,
    STATE_DIR,
    DiskFull,
    LabelingError,
    check_out,
    clear_parts,
    disk_errors,
    output_lock,
)
from mien.app.labeling.options import RAY_OUTPUTS, LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.ray.actor import Labeler
from mien.app.labeling.ray.cluster import Cluster, connected
from mien.app.labeling.ray.earlier import EARLIER
from mien.app.labeling.ray.ledger import Ledger
from mien.app.labeling.ray.partitions import Partition, begin_run, drop_plans, read_partition, write_plan
from mien.app.labeling.scan import scan
from mien.app.labeling.signals import Interrupts, Stopped
from mien.app.labeling.summary import Outcome, accuracy_by_reason
from mien.app.settings import Settings
from mien.app.wording import counted
from mien.models.manifest import artifact_dir, read_manifest

# A multiple of the engine's batch size, so that a new run forms the same batches as the local engine.
PARTITION: Final = 16 * BATCH
_MAX_BLOCKS: Final = 2_000


def check(options: LabelOptions) -> None:
    """Reject unsupported options. Raises: LabelingError."""
    others = [name for name in options.outputs if name not in RAY_OUTPUTS]
    if others:
        raise LabelingError(
            f"--engine ray writes only parquet, not {', '.join(others)}: leave out --write, or use the local engine."
        )
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        raise LabelingError("--engine ray: Ray Data is not installed. Run `pip install 'ray[data]' pyarrow`.")
    refused = {
        "--limit": options.limit is not None,
        "--check-hashes": options.check_hashes,
        "--min-face": options.min_face_px > 0,
        "--min-confidence": options.min_confidence > 0,
    }
    if given := [name for name, is_given in refused.items() if is_given]:
        raise LabelingError(f"--engine ray does not support {', '.join(given)}.")


def label_on_ray(
    options: LabelOptions, settings: Settings, report: Reporter, signals: Interrupts | None = None
) -> Outcome:
    """Label all inputs into partitions of `options.out`, resuming where an earlier run stopped.

    Raises: LabelingError and its subclasses.
    """
    check_out(options.out)
    options = replace(options, out=options.out.absolute())
    settings = with_absolute_paths(settings)
    out, began = options.out, time.perf_counter()
    outcome = Outcome(written=[out / LABELS_DIR, out / FILES_DIR])
    with output_lock(out), disk_errors(out):
        clear_parts(out)
        ledger = Ledger(out, outcome)
        try:
            ledger.add(scan(options, ledger.had_inputs), report.scanned)
            run, signals = begin_run(out), signals or Interrupts()
            # Ray installs its own handler of signals when it starts
            with connected(options.ray_address, options.workers) as ray, signals.installed():
                _label(Cluster(ray, options, settings, run), ledger, report, outcome)
        except Stopped as stop:
            outcome.stopped = str(stop)
        finally:
            ledger.close()
            drop_plans(out)
    outcome.total_seconds = time.perf_counter() - began
    return outcome


def _label(cluster: Cluster, ledger: Ledger, report: Reporter, outcome: Outcome) -> None:
    options, out = cluster.options, cluster.options.out
    facts = {} if options.new_run else ledger.earlier_facts()
    outcome.accuracy = accuracy_by_reason(read_manifest(artifact_dir(cluster.settings.model)))
    cluster = replace(cluster, settings=resumed(cluster.settings, facts))
    outcome.facts = cluster.facts()
    cluster = replace(cluster, settings=resumed(cluster.settings, outcome.facts))
    for folder in (LABELS_DIR, FILES_DIR):
        (out / folder).mkdir(exist_ok=True)
    if aside := ledger.settle(outcome.facts, new_run=options.new_run):
        report.say(f"Starting a new run. The partitions of the earlier run are kept in {aside}.")
    outcome.total, outcome.before = ledger.counts()
    if outcome.before:
        report.say(f"Resuming: {outcome.before:,} of {counted(outcome.total, 'file')} already labeled.")
    groups = ledger.missing(options.partition_files or PARTITION)
    keys = [write_plan(out, group, outcome.facts) for group in groups]
    report.start(outcome.total, outcome.before)
    began = time.perf_counter()
    outcome.workers = max(1, min(len(keys), cluster.actors))
    for partition in _labeled(cluster, keys, outcome):
        outcome.new += sum(partition.statuses.values()) - partition.reused
        outcome.reused += partition.reused
        for stage, seconds in partition.seconds.items():
            outcome.stage_seconds[stage] += seconds
        report.labeled(len(partition.inputs), sum(partition.labels.values()), partition.errors)
        if not ledger.take(partition):
            raise LabelingError(
                f"partition {partition.key}: some of its inputs are also in another partition. Rerun the same command."
            )
    outcome.seconds = time.perf_counter() - began
    total, done = ledger.counts()
    if total != done:
        raise LabelingError(f"{total - done:,} of {counted(total, 'file')} in no partition. Rerun the same command.")
    shutil.rmtree(out / STATE_DIR / EARLIER, ignore_errors=True)


def _labeled(cluster: Cluster, keys: list[str], outcome: Outcome) -> Iterator[Partition]:
    """Committed partitions, in any order. Raises: the error of a worker."""
    if not keys:
        return
    data = cluster.ray.data
    rows = data.from_items([{"key": key} for key in keys], override_num_blocks=min(len(keys), _MAX_BLOCKS))
    done = rows.map_batches(
        Labeler,
        fn_constructor_kwargs={
            "settings": cluster.settings,
            "options": cluster.options,
            "run": cluster.run,
            "facts": outcome.facts,
        },
        batch_size=1,
        batch_format="numpy",
        compute=data.ActorPoolStrategy(min_size=1, max_size=outcome.workers, initial_size=outcome.workers),
        num_cpus=1,
        num_gpus=cluster.gpu_share or None,
    )
    for batch in done.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
        for key, error in zip(batch["key"], batch["error"], strict=True):
            if error:
                kind, message = json.loads(str(error))
                raise (DiskFull if kind == "DiskFull" else LabelingError)(message)
            partition = read_partition(cluster.options.out, str(key))
            if partition is None:
                raise LabelingError(
                    f"partition {key} was committed, but the driver cannot find it. Do all machines share the folder "
                    f"{cluster.options.out}?"
                )
            yield partition
