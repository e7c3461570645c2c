"""Where batches are labeled: on threads of this process, or by actors on the machines of a Ray cluster.

An executor labels batches in order, a few at a time. The driver of a run forms the batches and commits their results to
the journal, whatever the executor is.
"""

import contextlib
import hashlib
import importlib.util
import logging
import math
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from mien.app.inference.runtime.cpu_count import cores
from mien.app.labeling.batch import BatchLabeler, BatchResult
from mien.app.labeling.facts import facts_of, open_pipeline, resumed
from mien.app.labeling.files import STATE_DIR, LabelingError
from mien.app.labeling.images import ANNOTATED, CROPS
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.reading import file_sha256
from mien.app.labeling.records import Failure, Input, Result
from mien.app.labeling.signals import Interrupts
from mien.app.labeling.store import is_url
from mien.app.settings import Settings

RUN_ID: Final = "run-id"  # file in the state folder, by which workers recognize the output folder of their run
_ATTEMPTS: Final = 5
_START_S: Final = 300.0
_STARTS: Final = 3
_CONNECT_S: Final = 10.0
_LOCAL_STORE_BYTES: Final = 200 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """Images labeled and committed together, or the end of a container, with a failure if there is one."""

    inputs: list[Input]
    closes: Input | None = None
    failure: Failure | None = None
    sha256: str = ""


class Executor(Protocol):
    """Labels the batches of a run; `facts` are those of its models."""

    facts: dict[str, str]
    workers: int

    def map(self, batches: Iterable[Batch], journal: Journal) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches, in order; a batch is taken from the iterator when a worker will soon be free."""
        ...


@contextlib.contextmanager
def open_executor(options: LabelOptions, settings: Settings, signals: Interrupts) -> Iterator[Executor]:
    """Open the executor that the options choose. Raises: LabelingError, StartupError, ArtifactError."""
    if options.engine == "local":
        yield Threads(options, settings)
        return
    with _connected(options) as ray, signals.installed():  # Ray installs its own handlers when it starts
        yield RayActors(ray, options, settings)


class Threads:
    """Threads of this process over one pipeline.

    OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so threads suffice, and pixels are not copied.
    """

    def __init__(self, options: LabelOptions, settings: Settings) -> None:
        self._labeler = BatchLabeler(open_pipeline(settings), options)
        self.facts = facts_of(self._labeler.pipeline)
        self.workers = options.workers or cores()

    def map(self, batches: Iterable[Batch], journal: Journal) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches in order."""
        pending: deque[tuple[Batch, Any]] = deque()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="label") as pool:
            try:
                for batch in batches:
                    pending.append((batch, pool.submit(self._labeler.label, batch.inputs, journal.earlier)))
                    if len(pending) > self.workers + 2:
                        first, future = pending.popleft()
                        yield first, future.result()
                while pending:
                    first, future = pending.popleft()
                    yield first, future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class NotReady(LabelingError):
    """The cluster or one of its machines cannot run the task; the message says what to change."""


class Worker:
    """A Ray actor with a pipeline of its own."""

    def __init__(self, options: LabelOptions, settings: Settings) -> None:
        self._options, self._settings = options, settings
        self._labeler: BatchLabeler | None = None
        self._run_id = ""

    def open(self) -> dict[str, str]:
        """Open the models. Returns: their facts and the machine. Raises: NotReady, StartupError, ArtifactError."""
        return facts_of(self._opened().pipeline) | {"machine": socket.gethostname()}

    def _opened(self) -> BatchLabeler:
        if self._labeler is None:
            names = (name for name in self._options.inputs if not is_url(name))
            if missing := next((name for name in names if not os.path.lexists(name)), None):
                raise NotReady(f"cannot find the input {missing}. Use a path that is the same on all machines.")
            self._labeler = BatchLabeler(open_pipeline(self._settings), self._options)
        return self._labeler

    def label(self, inputs: list[Input], moved: dict[int, Result], run_id: str) -> BatchResult:
        """Label a batch; `moved` are earlier results by row. Raises: LabelingError."""
        if self._run_id != run_id and any(item.images & (ANNOTATED | CROPS) for item in inputs):
            path = self._options.out / STATE_DIR / RUN_ID
            if not path.exists() or path.read_text(encoding="ascii") != run_id:
                raise NotReady(
                    f"machine {socket.gethostname()} cannot find the output folder {self._options.out} of this run. "
                    "Use a folder that all machines share, or leave out the outputs annotated, crops and classes."
                )
            self._run_id = run_id

        def earlier(item: Input, sha256: str) -> Result | None:
            result = moved.get(item.row or 0)
            return result if result is not None and result.sha256 == sha256 else None

        return self._opened().label(inputs, earlier)


class RayActors:
    """Actors of a Ray cluster. A batch whose worker or machine dies is labeled by another one."""

    def __init__(self, ray: Any, options: LabelOptions, settings: Settings) -> None:
        """Start the workers, and wait for the first. Raises: NotReady, or the error of its models."""
        self._ray = ray
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.workers = min(options.workers or cpus, cpus)
        inputs = [name if is_url(name) else os.path.abspath(name) for name in options.inputs]
        inputs = [name for name in inputs if is_url(name) or os.path.lexists(name)]  # no patterns
        options = replace(options, out=options.out.absolute(), inputs=inputs)
        settings = settings.absolute()
        self._actor = ray.remote(num_cpus=1, num_gpus=self._gpu_share(settings), max_restarts=-1)(Worker)
        self._out = options.out
        self._load: dict[Any, int] = {}  # batches in progress of each worker that is ready
        self._starting: dict[Any, Any] = {}  # workers by the reference to their facts
        self.facts: dict[str, str] = {}
        self._start(self._actor.remote(options, settings))
        self._wait_for_worker()
        settings = resumed(settings, self.facts)  # the precision that the first one measured
        for _ in range(1, self.workers):
            self._start(self._actor.remote(options, settings))

    def map(self, batches: Iterable[Batch], journal: Journal) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches in order."""
        run_id = uuid.uuid4().hex
        (self._out / STATE_DIR / RUN_ID).write_text(run_id, encoding="ascii")
        pending: deque[tuple[Batch, Callable[[], BatchResult]]] = deque()
        for batch in batches:
            moved = _moved(batch.inputs, journal)
            pending.append((batch, self._submit(batch, moved, run_id) if batch.inputs else _nothing))
            if len(pending) > 2 * self.workers:
                first, result = pending.popleft()
                yield first, result()
        while pending:
            first, result = pending.popleft()
            yield first, result()

    def _gpu_share(self, settings: Settings) -> float:
        """Share of a GPU for each worker: 0 unless the device is `cuda`. Raises: NotReady."""
        if settings.device != "cuda":
            return 0.0
        gpus = self._ray.cluster_resources().get("GPU", 0)
        if not gpus:
            raise NotReady("--engine ray --device cuda: no machine of the cluster has a GPU. Choose --device cpu.")
        return 1.0 / max(1, math.ceil(self.workers / float(gpus)))

    def _start(self, actor: Any) -> None:
        self._starting[actor.open.remote()] = actor

    def _wait_for_worker(self) -> None:
        """Add the workers that have started, and wait if there is none. Raises: NotReady, or the error of a worker."""
        while True:
            timeout_s = 0.0 if self._load else _START_S
            ready, _ = self._ray.wait(list(self._starting), timeout=timeout_s) if self._starting else ([], [])
            if not ready and not self._load:
                raise NotReady(f"--engine ray: no machine of the cluster had a free core within {_START_S:.0f} s.")
            if not ready:
                return
            actor = self._starting.pop(ready[0])
            try:
                facts = self._ray.get(ready[0])
            except self._ray.exceptions.ActorUnavailableError:  # it died, and restarts
                self._start(actor)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            except self._ray.exceptions.RayError as error:
                needs = "Every machine needs this version of Mien and Ray."
                raise NotReady(f"--engine ray: a worker cannot start: {last_line(error)}. {needs}") from error
            machine = facts.pop("machine")
            self.facts = self.facts or facts
            unequal = (name for name in facts if facts[name] != self.facts[name])
            if different := [f"{name} {facts[name]} instead of {self.facts[name]}" for name in unequal]:
                raise NotReady(f"machine {machine} differs: {', '.join(different)}. All machines need the same.")
            self._load[actor] = 0

    def _submit(self, batch: Batch, moved: dict[int, Result], run_id: str) -> Callable[[], BatchResult]:
        """Send a batch to the worker with the fewest; returns a function that waits for the result."""
        exceptions = self._ray.exceptions

        def send() -> tuple[Any, Any]:
            self._wait_for_worker()
            actor = min(self._load, key=self._load.__getitem__)
            self._load[actor] += 1
            return actor, actor.label.remote(batch.inputs, moved, run_id)

        sent = send()

        def result() -> BatchResult:
            nonlocal sent
            for _ in range(_ATTEMPTS):
                actor, reference = sent
                try:
                    labeled: BatchResult = self._ray.get(reference)
                except exceptions.RayTaskError as error:
                    raise _cause(error) from error
                except (exceptions.RayActorError, exceptions.ObjectLostError):
                    if self._load.pop(actor, None) is not None:  # not noticed by another batch
                        self._start(actor)  # Ray restarts it
                    sent = send()
                else:
                    if actor in self._load:
                        self._load[actor] -= 1
                    return labeled
            raise LabelingError(f"{_ATTEMPTS} workers died while they labeled a batch from {batch.inputs[0].name} on.")

        return result


def _nothing() -> BatchResult:
    return BatchResult([], {})


def _moved(inputs: list[Input], journal: Journal) -> dict[int, Result]:
    """Earlier results of moved inputs by row, which only the driver can look up."""
    results: dict[int, Result] = {}
    for item in inputs:
        if not journal.may_have_moved(item):
            continue
        with contextlib.suppress(OSError):  # the worker will record the reason
            payload = item.payload
            sha256 = hashlib.sha256(payload).hexdigest() if payload else item.sha256 or file_sha256(item.path)
            if (result := journal.earlier(item, sha256)) is not None:
                results[item.row or 0] = result
    return results


@contextlib.contextmanager
def _connected(options: LabelOptions) -> Iterator[Any]:
    """Connect Ray to a cluster, or to a local one that ends with the block. Raises: NotReady."""
    if importlib.util.find_spec("ray") is None:
        raise LabelingError("--engine ray: Ray is not installed. Run `pip install ray`.")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # disable usage statistics; must be set before Ray is imported
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")  # for a local cluster on a busy machine
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    address = options.ray_address
    chosen: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        chosen |= {"num_cpus": options.workers or cores(), "include_dashboard": False}
        chosen |= {"object_store_memory": _LOCAL_STORE_BYTES}
    else:
        _check_reachable(address)
    tries = 1 if address else _STARTS  # the processes of a local one may time out on a busy machine
    for number in range(1, tries + 1):
        try:
            ray.init(address or "local", **chosen)
            break
        except Exception as error:  # Ray raises plain Exception if its processes do not start in time
            ray.shutdown()
            if number == tries:
                where = f"reach the cluster at {address}" if address else "start a cluster on this machine"
                raise NotReady(f"--engine ray: cannot {where}: {last_line(error)}") from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise NotReady(f"the cluster could not finish: {last_line(error)}. Rerun the same command.") from error
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check that a server listens at an address; Ray itself would retry for minutes. Raises: NotReady."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):  # `auto`, which Ray resolves
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise NotReady(f"--engine ray: cannot reach the cluster at {address}: {error.strerror or error}") from error


def _cause(error: Any) -> Exception:
    """The error that a worker raised, of its own class."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else NotReady(last_line(error))


def last_line(error: Exception) -> str:
    """Last line of an error of the cluster, which describes the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
