"""Labeling by tasks on the machines of a Ray cluster.

The driver finds the inputs and commits their results to the journal, as it does with processes of its own.
"""

import contextlib
import importlib.util
import logging
import math
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

from mien.app.cpu_count import cores
from mien.app.errors import LabelingError
from mien.app.labeling.copies import REPORT
from mien.app.labeling.executors import Results, Setup, Task, facts_of, label_batch, open_labeler
from mien.app.labeling.inputs import JOURNAL, STATE_DIR, is_url
from mien.app.labeling.journal import Result
from mien.app.labeling.options import LabelOptions

_RETRIES: Final = 4
_START_S: Final = 300.0
_CONNECT_S: Final = 10.0
_LOCAL_STORE_BYTES: Final = 200 * 1024 * 1024


class RayTasks:
    """Tasks of a Ray cluster, which runs the batch of a worker or machine that dies on another one."""

    def __init__(self, ray: Any, setup: Setup) -> None:
        """Open the models on a first worker. Raises: LabelingError, or the error of its models."""
        self._ray = ray
        options, settings = setup.options, setup.settings.absolute()
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.workers = min(options.workers or cpus, cpus)
        self._ahead = self.workers if self.workers < cpus else 2 * self.workers
        inputs = [name if is_url(name) else os.path.abspath(name) for name in options.inputs]
        options = replace(options, out=options.out.absolute(), inputs=inputs)
        gpus, share = ray.cluster_resources().get("GPU", 0), 0.0
        if settings.device == "cuda":
            if not gpus:
                raise LabelingError("--device cuda: no machine of the Ray cluster has a GPU. Choose --device cpu.")
            share = 1.0 / math.ceil(self.workers / gpus)
        # By default, a process that uses a GPU ends with its task, and the next one opens the models again.
        resources = {"num_cpus": 1, "num_gpus": share, "max_retries": _RETRIES, "max_calls": 0}
        opened = ray.remote(**resources)(open_on_worker).remote(Setup(settings, options))
        if not ray.wait([opened], timeout=_START_S)[0]:
            raise LabelingError(f"--engine ray: no machine of the cluster had a free core within {_START_S:.0f} s.")
        self.facts: dict[str, str] = self._result(opened)
        # Machines with other processors or without a GPU run the precision of the first worker, too.
        self._setup = Setup(settings.model_copy(update={"precision": self.facts["precision"]}), options)
        self._label = ray.remote(**resources)(label_on_worker)

    def run(self, tasks: Iterable[Task], pictures: frozenset[str]) -> Results:
        """Label tasks in order."""
        setup, pending = self._ray.put(replace(self._setup, pictures=pictures)), deque[tuple[Any, str]]()
        for task in tasks:
            labeled = self._label.remote(setup, self.facts, task)
            pending.append((labeled, f" while it labeled a batch from {task[0].name} on"))
            if len(pending) > self._ahead:
                yield self._result(*pending.popleft())
        while pending:
            yield self._result(*pending.popleft())

    def _result(self, reference: Any, where: str = "") -> Any:
        """The result of a task. Raises: LabelingError, or the error of the task."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), Exception):
                raise cause from error
            raise LabelingError(
                f"--engine ray: the cluster failed{where}: {last_line(error)}. Every machine needs this version of "
                "Mien and Ray."
            ) from error


def open_on_worker(setup: Setup) -> dict[str, str]:
    """Open the models. Returns: their facts. Raises: LabelingError, if an input is missing; StartupError."""
    names = (name for name in setup.options.inputs if not is_url(name))
    if missing := next((name for name in names if not _exists(name)), None):
        raise LabelingError(f"cannot find the input {missing}. Use a path that is the same on all machines.")
    return facts_of(open_labeler(setup.settings), setup.options)


_exists: Final = cache(os.path.lexists)


def label_on_worker(setup: Setup, facts: dict[str, str], task: Task) -> list[Result]:
    """Label a task; `facts` are those of the first worker. Raises: LabelingError."""
    machine, own, out = socket.gethostname(), open_on_worker(setup), setup.options.out
    if different := [f"{name} {own[name]} instead of {facts[name]}" for name in own if own[name] != facts[name]]:
        raise LabelingError(f"machine {machine} differs: {', '.join(different)}. All machines need the same.")
    if setup.pictures - {REPORT} and not (out / STATE_DIR / JOURNAL).exists():
        raise LabelingError(
            f"machine {machine} cannot find the output folder {out} of this run. Use a folder that all machines share, "
            "or leave out the outputs annotated and crops."
        )
    return list(label_batch(setup, task))


@contextlib.contextmanager
def connected(options: LabelOptions) -> Iterator[Any]:
    """Connect Ray to a cluster, or to a local one that ends with the block. Raises: LabelingError."""
    if importlib.util.find_spec("ray") is None:
        raise LabelingError("--engine ray: Ray is not installed. Run `pip install ray`.")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads it when it is imported.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")  # A local cluster on a busy machine needs longer.
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    chosen: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if options.ray_address is None:
        chosen |= {"num_cpus": options.workers or cores(), "include_dashboard": False}
        chosen |= {"object_store_memory": _LOCAL_STORE_BYTES}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        host, _, port = (options.ray_address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray resolves `auto`; it would try for minutes to reach a wrong address.
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(options.ray_address or "local", **chosen)
    except Exception as error:  # Ray raises plain Exception if its processes do not start in time.
        ray.shutdown()
        where = f"reach the cluster at {options.ray_address}" if options.ray_address else "start a cluster here"
        raise LabelingError(f"--engine ray: cannot {where}: {last_line(error)}") from error
    if threading.current_thread() is threading.main_thread():  # Ray installs its own handlers when it starts.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def last_line(error: Exception) -> str:
    """Last line of an error of the cluster, which describes the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
