"""Labeling by tasks on the machines of a Ray cluster.

The driver finds the inputs and commits their results to the journal, as it does with processes of its own.
"""

import contextlib
import importlib.util
import logging
import math
import os
import pickle
import signal
import socket
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from mien.app.cpu_count import cores
from mien.app.errors import LabelingError, NotReady
from mien.app.labeling.copies import REPORT
from mien.app.labeling.executors import Results, Setup, Task, facts_of, label_batch, open_labeler
from mien.app.labeling.inputs import STATE_DIR, is_url
from mien.app.labeling.journal import Result
from mien.app.labeling.options import LabelOptions

RUN_ID: Final = "run-id"  # Workers recognize the output folder of their run by this file in the state folder.
_RETRIES: Final = 4
_START_S: Final = 300.0
_CONNECT_S: Final = 10.0
_LOCAL_STORE_BYTES: Final = 200 * 1024 * 1024


class RayTasks:
    """Tasks of a Ray cluster, which runs the batch of a worker or machine that dies on another one."""

    def __init__(self, ray: Any, setup: Setup) -> None:
        """Open the models on a first worker. Raises: NotReady, or the error of its models."""
        self._ray = ray
        options, settings = setup.options, setup.settings.absolute()
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.workers = min(options.workers or cpus, cpus)
        self._ahead = self.workers if self.workers < cpus else 2 * self.workers
        inputs = [name if is_url(name) else os.path.abspath(name) for name in options.inputs]
        options = replace(options, out=options.out.absolute(), inputs=inputs)
        self._out = options.out
        gpus, share = ray.cluster_resources().get("GPU", 0), 0.0
        if settings.device == "cuda":
            if not gpus:
                raise NotReady("--engine ray --device cuda: no machine of the cluster has a GPU. Choose --device cpu.")
            share = 1.0 / math.ceil(self.workers / gpus)
        # By default, a process that uses a GPU ends with its task, and the next one opens the models again.
        resources = {"num_cpus": 1, "num_gpus": share, "max_retries": _RETRIES, "max_calls": 0}
        opened = ray.remote(**resources)(open_on_worker).remote(pickle.dumps(Setup(settings, options)))
        if not ray.wait([opened], timeout=_START_S)[0]:
            raise NotReady(f"--engine ray: no machine of the cluster had a free core within {_START_S:.0f} s.")
        self.facts: dict[str, str] = self._result(opened)
        # Machines with other processors or without a GPU run the precision of the first worker, too.
        self._setup = Setup(settings.model_copy(update={"precision": self.facts["precision"]}), options)
        self._label = ray.remote(**resources)(label_on_worker)

    def run(self, tasks: Iterable[Task], pictures: frozenset[str]) -> Results:
        """Label tasks in order."""
        setup = pickle.dumps(replace(self._setup, pictures=pictures))
        run_id = uuid.uuid4().hex
        (self._out / STATE_DIR / RUN_ID).write_text(run_id, encoding="ascii")
        pending = deque[tuple[Any, str]]()
        for task in tasks:
            reference = self._label.remote(setup, self.facts, task, run_id)
            pending.append((reference, f" while it labeled a batch from {task[0].name} on"))
            if len(pending) > self._ahead:
                yield self._result(*pending.popleft())
        while pending:
            yield self._result(*pending.popleft())

    def _result(self, reference: Any, where: str = "") -> Any:
        """The result of a task. Raises: NotReady, or the error of the task."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from error
            raise NotReady(last_line(error)) from error
        except (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError) as error:
            raise NotReady(f"--engine ray: a worker died {_RETRIES + 1} times{where}: {last_line(error)}") from error
        except self._ray.exceptions.RayError as error:
            needs = "Every machine needs this version of Mien and Ray."
            raise NotReady(f"--engine ray: a worker cannot start: {last_line(error)}. {needs}") from error


def open_on_worker(setup: bytes) -> dict[str, str]:
    """Open the models. Returns: their facts. Raises: NotReady, StartupError, ArtifactError."""
    opened = _setup(setup)
    return facts_of(open_labeler(opened.settings), opened.options)


def label_on_worker(setup: bytes, facts: dict[str, str], task: Task, run_id: str) -> list[Result]:
    """Label a task; `facts` are those of the first worker. Raises: LabelingError."""
    opened, machine, own = _setup(setup), socket.gethostname(), open_on_worker(setup)
    if different := [f"{name} {own[name]} instead of {facts[name]}" for name in own if own[name] != facts[name]]:
        raise NotReady(f"machine {machine} differs: {', '.join(different)}. All machines need the same.")
    out = opened.options.out
    recorded = out / STATE_DIR / RUN_ID
    if opened.pictures - {REPORT} and not (recorded.exists() and recorded.read_text(encoding="ascii") == run_id):
        raise NotReady(
            f"machine {machine} cannot find the output folder {out} of this run. Use a folder that all machines share, "
            "or leave out the outputs annotated and crops."
        )
    return list(label_batch(opened, task))


@lru_cache(maxsize=1)
def _setup(pickled: bytes) -> Setup:
    """The setup of this process. Raises: NotReady, if a machine lacks an input."""
    setup: Setup = pickle.loads(pickled)  # noqa: S301  # The driver wrote it.
    names = (name for name in setup.options.inputs if not is_url(name))
    if missing := next((name for name in names if not os.path.lexists(name)), None):
        raise NotReady(f"cannot find the input {missing}. Use a path that is the same on all machines.")
    return setup


@contextlib.contextmanager
def connected(options: LabelOptions) -> Iterator[Any]:
    """Connect Ray to a cluster, or to a local one that ends with the block. Raises: NotReady."""
    if importlib.util.find_spec("ray") is None:
        raise LabelingError("--engine ray: Ray is not installed. Run `pip install ray`.")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads it when it is imported.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")  # A local cluster on a busy machine needs longer.
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    address = options.ray_address
    chosen: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        chosen |= {"num_cpus": options.workers or cores(), "include_dashboard": False}
        chosen |= {"object_store_memory": _LOCAL_STORE_BYTES}
    else:
        _check_reachable(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address or "local", **chosen)
    except Exception as error:  # Ray raises plain Exception if its processes do not start in time.
        ray.shutdown()
        where = f"reach the cluster at {address}" if address else "start a cluster on this machine"
        raise NotReady(f"--engine ray: cannot {where}: {last_line(error)}") from error
    if threading.current_thread() is threading.main_thread():  # Ray installs its own handlers when it starts.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise NotReady(f"the cluster could not finish: {last_line(error)}. Rerun the same command.") from error
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check that a server listens at an address; Ray itself would retry for minutes. Raises: NotReady."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):  # Ray resolves `auto`.
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise NotReady(f"--engine ray: cannot reach the cluster at {address}: {error.strerror or error}") from error


def last_line(error: Exception) -> str:
    """Last line of an error of the cluster, which describes the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
