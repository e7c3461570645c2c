"""How is a folder labelled on many machines? The same stages on Ray Data, in partitions that any of them may label.

python -m app label photos --out out --engine ray [--ray-address auto]

The driver scans, plans partitions and waits; every actor of the cluster takes one partition after another through
`app.labelling.engine`, over a journal of its own on its own disk, and commits its rows as `app.labelling.partitions`
says. Through Ray travel keys of partitions and counts, no pixels: photos are read where they are labelled, so inputs,
output and model have to be reachable by every machine under the same path.
"""

import contextlib
import importlib.util
import json
import logging
import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from app.cores import cores
from app.errors import MienError
from app.labelling.containers import Sampling
from app.labelling.engine import GROUP, Engine, Limits, Watcher
from app.labelling.files import STATE_DIR, DiskFull, LabellingError, clear_parts, disk_errors, output_lock, parts_dir
from app.labelling.journal import Journal
from app.labelling.partitions import (
    FILES_DIR,
    LABELS_DIR,
    AnotherRun,
    Ledger,
    Written,
    attempt,
    begin_run,
    commit,
    drop_plans,
    is_current,
    read_plan,
    read_written,
    signature_of,
    write_plan,
)
from app.labelling.products import ProductOptions
from app.labelling.progress import Reporter
from app.labelling.records import TRANSIENT, Source, Tally
from app.labelling.run import Outcome, Request, facts_of, open_pipelines, sources_of
from app.labelling.view import View
from app.labelling.worker import Job
from app.settings import Settings
from models.manifest import ArtefactError

OUTPUTS: Final = ("parquet",)
# A multiple of the engine's groups, so that a fresh run forms the groups, and so the batches, of the local engine.
PARTITION: Final = 16 * GROUP
_ATTEMPTS: Final = 5
_LOCAL_STORE_BYTES: Final = 200 * 1024 * 1024
_STARTS: Final = 3
_KNOCK_S: Final = 10.0
_ROLL_CALL_S: Final = 300.0
_MAX_BLOCKS: Final = 2_000


class Unready(LabellingError):
    """The cluster, or a machine of it, cannot do this run; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where to label. address: of an existing cluster, None for one on this machine; partition: inputs in each."""

    address: str | None = None
    partition: int = PARTITION


class _Signalled(Exception):
    """The run was asked to stop."""


def check(outputs: tuple[str, ...], *, asked: bool) -> None:
    """Refuse what this engine cannot do. Raises: LabellingError."""
    others = [name for name in outputs if name not in OUTPUTS]
    if asked and others:
        raise LabellingError(
            f"--engine ray writes parquet alone, not {', '.join(others)}: leave --write out, or use the local engine."
        )
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        raise LabellingError("--engine ray: Ray Data is not installed. Run `pip install mien[ray]`.")


def label_on_ray(request: Request, settings: Settings, report: Reporter, cluster: Cluster) -> Outcome:
    """Label all inputs into partitions of `request.out`, going on where an earlier run stopped.

    Raises: LabellingError and its kinds.
    """
    sources = sources_of(request)
    out = request.out.absolute()
    began = time.perf_counter()
    received: list[str] = []
    with output_lock(out), disk_errors(out):
        clear_parts(out)
        run = begin_run(out)
        outcome = Outcome(Tally(), 0, 0, written=[out / LABELS_DIR, out / FILES_DIR])
        ledger = Ledger(out)
        try:
            for count in ledger.add(sources):
                report.scanned(count)
            with _connected(cluster.address, request.workers) as ray, _signals(received):
                _label(ray, ledger, _Task(request, out, run, settings, cluster), report, outcome)
        except _Signalled:
            outcome.stopped = received[0]
        finally:
            outcome.statuses, outcome.labels = dict(ledger.statuses), dict(ledger.labels)
            ledger.close()
            drop_plans(out)
        outcome.total_seconds = time.perf_counter() - began
        return outcome


@dataclass(frozen=True, slots=True)
class _Task:
    """What the driver needs beside the ledger."""

    request: Request
    out: Path
    run: str
    settings: Settings
    cluster: Cluster


def _label(ray: Any, ledger: Ledger, task: _Task, report: Reporter, outcome: Outcome) -> None:
    share = _gpu_share(ray, task)
    facts = _roll_call(ray, task, share)
    outcome.detector, outcome.model, outcome.provider = facts["detector"], facts["model"], facts["provider"]
    for folder in (LABELS_DIR, FILES_DIR):
        (task.out / folder).mkdir(exist_ok=True)
    aside = ledger.settle(facts)
    if aside:
        where = task.out / STATE_DIR / "previous"
        report.say(f"A new run is started: {aside} partitions are of another model or setting, and now in {where}.")
    outcome.total, outcome.before = ledger.counts()
    if outcome.before:
        report.say(f"Going on: {outcome.before:,} of {outcome.total:,} files are done already.")
    keys = [write_plan(task.out, group, facts) for group in ledger.missing(task.cluster.partition)]
    report.start(outcome.total, outcome.before)
    began = time.perf_counter()
    outcome.workers = max(1, min(len(keys), _actors(ray, task)))
    for written in _labelled(ray, task, keys, facts, (outcome.workers, share)):
        _count(written, outcome.tally, report)
        if not ledger.take(written):
            raise LabellingError(f"partition {written.key}: its inputs are in another partition too. Run it again.")
    outcome.seconds = time.perf_counter() - began
    total, done = ledger.counts()
    if total != done:
        raise LabellingError(f"{total - done:,} of {total:,} files are in no partition. Run the same command again.")


def _count(written: Written, tally: Tally, report: Reporter) -> None:
    pictures = sum(written.statuses.values())
    tally.pictures += pictures
    tally.faces += sum(written.labels.values())
    tally.errors += written.statuses.get("error", 0)
    tally.skipped += written.statuses.get("skipped", 0)
    tally.no_face += written.statuses.get("no_face", 0)
    for stage, seconds in written.seconds.items():
        tally.spend(stage, seconds)
    report.partition(len(written.inputs), sum(written.labels.values()), written.errors)


@contextlib.contextmanager
def _signals(received: list[str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run; what is committed stays, and what is under way is labelled again.

    Entered once Ray is there, which brings a handler of its own.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(signal.Signals(number).name)
        raise _Signalled

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The cluster


@contextlib.contextmanager
def _connected(address: str | None, workers: int) -> Iterator[Any]:
    """Ray, connected to a cluster or to one started here for this run alone, which ends with it. Raises: Unready."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported: nothing is reported to anybody
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")  # of a cluster started here, on a busy machine
    import ray
    from ray.data import DataContext
    from ray.data.exceptions import SystemException

    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    _start(ray, address, workers)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield ray
    except (ray.exceptions.RayError, SystemException) as error:
        raise Unready(f"the cluster could not finish: {_first_line(error)}. Run the same command again.") from error
    finally:
        ray.shutdown()


def _start(ray: Any, address: str | None, workers: int) -> None:
    """Connect, or start a cluster; on a busy machine its parts may miss each other, so this is tried more than once.

    Raises: Unready.
    """
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {"num_cpus": workers or cores(), "include_dashboard": False}
        options |= {"object_store_memory": _LOCAL_STORE_BYTES}
    else:
        _knock(address)
    tries = 1 if address else _STARTS
    for number in range(1, tries + 1):
        try:
            ray.init(address or "local", **options)
        except Exception as error:  # Ray raises plain Exception where its parts do not start in time
            ray.shutdown()
            if number == tries:
                where = f"reach the cluster at {address}" if address else "start a cluster on this machine"
                raise Unready(f"--engine ray: cannot {where}: {_first_line(error)}") from error
        else:
            return


def _knock(address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself would try for minutes. Raises: Unready."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):  # `auto`, which Ray resolves
        return
    try:
        socket.create_connection((host, int(port)), _KNOCK_S).close()
    except OSError as error:
        raise Unready(f"--engine ray: cannot reach the cluster at {address}: {error.strerror or error}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _actors(ray: Any, task: _Task) -> int:
    return task.request.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))


def _gpu_share(ray: Any, task: _Task) -> float:
    """The part of a GPU that each actor takes: none but for `cuda`, else so that all actors fit. Raises: Unready."""
    if task.settings.device != "cuda":
        return 0.0
    gpus = ray.cluster_resources().get("GPU", 0)
    if not gpus:
        raise Unready("--engine ray --device cuda: no machine of the cluster has a GPU. Choose --device cpu.")
    return 1.0 / max(1, math.ceil(_actors(ray, task) / float(gpus)))


def _roll_call(ray: Any, task: _Task, gpu_share: float) -> dict[str, str]:
    """What results depend on, once every machine has said that it has the folders and the same. Raises: Unready."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    needs = {"CPU": 1.0} | ({"GPU": gpu_share} if gpu_share else {})
    nodes = [
        node
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in needs.items())
    ]
    ask = ray.remote(num_cpus=1, num_gpus=gpu_share, max_retries=0)(_present)
    first = _first_path(task)
    answers = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            task.settings, str(task.out), task.run, first
        )
        for node in nodes
    ]
    if not answers:
        raise Unready("--engine ray: no machine of the cluster has a free core.")
    found: dict[str, dict[str, str]] = {}
    for node, answer in zip(nodes, answers, strict=True):
        machine = str(node["NodeManagerAddress"])
        try:
            found[machine] = ray.get(answer, timeout=_ROLL_CALL_S)
        except ray.exceptions.RayError as error:
            raise Unready(
                f"machine {machine} cannot label: {_first_line(error)}. It needs mien[ray] of this version."
            ) from error
    return _agreed(found)


def _agreed(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """The facts that all machines share. Raises: Unready, naming the machine that differs or has a problem."""
    (first, facts), *others = found.items()
    for machine, own in found.items():
        if "problem" in own:
            raise Unready(f"machine {machine}: {own['problem']}")
    for machine, own in others:
        different = [
            f"{name} {own.get(name)} instead of {facts[name]}" for name in facts if own.get(name) != facts[name]
        ]
        if different:
            raise Unready(f"machine {machine} differs from {first}: {', '.join(different)}. Make them alike.")
    return facts


def _first_path(task: _Task) -> str | None:
    """An input given on the command line, which every machine has to see."""
    given = [name for name in task.request.inputs if os.path.lexists(name)]
    return os.path.abspath(given[0]) if given else None


def _present(settings: Settings, out: str, run: str, first: str | None) -> dict[str, str]:
    """On a machine of the cluster: what its results depend on, or its `problem` in words."""
    folder = Path(out)
    if not is_current(folder, run):
        return {"problem": f"does not see the output folder {out} of this run. Put it where every machine has it."}
    if first is not None and not os.path.lexists(first):
        return {"problem": f"does not see the input {first}. Put it where every machine has it, under the same path."}
    try:
        mark = parts_dir(folder) / f"{socket.gethostname()}-{os.getpid()}"
        mark.touch()
        mark.unlink()
        return facts_of(open_pipelines(settings, 1)[0])
    except OSError as error:
        return {"problem": f"cannot write into {out} ({error.strerror or error})"}
    except (MienError, ArtefactError) as error:
        return {"problem": str(error)}


def _labelled(
    ray: Any, task: _Task, keys: list[str], facts: dict[str, str], pool: tuple[int, float]
) -> Iterator[Written]:
    """Each partition once it is committed, in no order. Raises: what a worker met."""
    if not keys:
        return
    actors, gpu_share = pool
    rows = ray.data.from_items([{"key": key} for key in keys], override_num_blocks=min(len(keys), _MAX_BLOCKS))
    done = rows.map_batches(
        Labeller,
        fn_constructor_kwargs={
            "settings": task.settings,
            "out": str(task.out),
            "run": task.run,
            "facts": facts,
            "sampling": task.request.sampling,
        },
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors, initial_size=actors),
        num_cpus=1,
        num_gpus=gpu_share or None,
    )
    for batch in done.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
        for key, trouble in zip(batch["key"], batch["trouble"], strict=True):
            if trouble:
                kind, message = json.loads(str(trouble))
                raise (DiskFull if kind == "DiskFull" else LabellingError)(message)
            written = read_written(task.out, str(key))
            if written is None:
                raise LabellingError(
                    f"partition {key} was committed, but cannot be seen from here: is {task.out} shared?"
                )
            yield written


# On the machines of the cluster


class Labeller:
    """An actor: labels one partition after another with one pipeline, and commits each."""

    def __init__(self, settings: Settings, out: str, run: str, facts: dict[str, str], sampling: Sampling) -> None:
        """Open detector and model. Raises: Unready, where they are not those of the run."""
        self._out, self._run, self._sampling = Path(out), run, sampling
        self._pipeline = open_pipelines(settings, 1)[0]
        self._facts = _agreed({"the run": facts, socket.gethostname(): facts_of(self._pipeline)})

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Label the partitions of a batch; `trouble` is kind and message of what ends the run, or empty."""
        troubles = [self._one(str(key)) for key in batch["key"]]
        return {"key": batch["key"], "trouble": troubles}

    def _one(self, key: str) -> str:
        try:
            if read_written(self._out, key) is None:  # another may have committed it before its machine was lost
                attempt(self._out, key, _ATTEMPTS)
                with tempfile.TemporaryDirectory(prefix="mien-") as scratch:
                    self._label(key, read_plan(self._out, key), Path(scratch))
        except (LabellingError, OSError) as error:
            return json.dumps([type(error).__name__, f"{socket.gethostname()}: {error}"])
        return ""

    def _label(self, key: str, sources: list[Source], scratch: Path) -> None:
        journal = Journal(_with_state(scratch))
        try:
            journal.put("facts", json.dumps(self._facts))
            journal.begin_session()
            for _ in journal.add_sources(sources):
                pass
            limits = Limits(None, 1, self._pipeline.settings.max_bytes, self._sampling)
            engine = Engine(journal, Job(scratch, ProductOptions()), limits, 0, Watcher(_ignore, _ignore))
            engine.run([self._pipeline])
            self._commit(key, sources, scratch, engine.tally)
        finally:
            journal.close()

    def _commit(self, key: str, sources: list[Source], scratch: Path, tally: Tally) -> None:
        view = View(scratch)
        try:
            failed = [(one.name, one.reason or "", one.error or "") for one in view.pictures() if one.status == "error"]
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
        finally:
            view.close()


def _with_state(scratch: Path) -> Path:
    (scratch / STATE_DIR).mkdir()
    return scratch


def _ignore(_: object) -> None:
    """Nobody watches within a partition."""


__all__ = ["OUTPUTS", "PARTITION", "AnotherRun", "Cluster", "Unready", "check", "label_on_ray"]
