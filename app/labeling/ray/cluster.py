"""Ray cluster: connection or local start, cores and GPUs, and consistency of its machines."""

import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.app.inference.runtime.cpu_count import cores
from mien.app.labeling.facts import facts_of, open_pipeline
from mien.app.labeling.files import LabelingError, parts_dir
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.ray.partitions import is_current
from mien.app.labeling.store import check_store, is_url
from mien.app.settings import Settings
from mien.data.errors import MienError

_LOCAL_STORE_BYTES: Final = 200 * 1024 * 1024
_STARTS: Final = 3
_CONNECT_S: Final = 10.0
_FACTS_S: Final = 300.0


class NotReady(LabelingError):
    """The cluster or one of its machines cannot run the task; the message says what to change."""


@contextlib.contextmanager
def connected(address: str | None, workers: int) -> Iterator[Any]:
    """Connect Ray to a cluster, or to a local one that ends with the block. Raises: NotReady."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # disable usage statistics; must be set before Ray is imported
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")  # for a local cluster on a busy machine
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
        raise NotReady(f"the cluster could not finish: {last_line(error)}. Rerun the same command.") from error
    finally:
        ray.shutdown()


def _start(ray: Any, address: str | None, workers: int) -> None:
    """Connect, or start a cluster; retried, because processes may time out on a busy machine.

    Raises: NotReady.
    """
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {"num_cpus": workers or cores(), "include_dashboard": False}
        options |= {"object_store_memory": _LOCAL_STORE_BYTES}
    else:
        _check_reachable(address)
    tries = 1 if address else _STARTS
    for number in range(1, tries + 1):
        try:
            ray.init(address or "local", **options)
        except Exception as error:  # Ray raises plain Exception if its processes do not start in time
            ray.shutdown()
            if number == tries:
                where = f"reach the cluster at {address}" if address else "start a cluster on this machine"
                raise NotReady(f"--engine ray: cannot {where}: {last_line(error)}") from error
        else:
            return


def _check_reachable(address: str) -> None:
    """Check that a server listens at an address; Ray itself would retry for minutes. Raises: NotReady."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):  # `auto`, which Ray resolves
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise NotReady(f"--engine ray: cannot reach the cluster at {address}: {error.strerror or error}") from error


def last_line(error: Exception) -> str:
    """Last line of an error of the cluster, which describes the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connected cluster and its task: options, settings and number of the run; `ray` is the module."""

    ray: Any
    options: LabelOptions
    settings: Settings
    run: str

    @property
    def actors(self) -> int:
        """Number of workers: as requested, or the number of cores."""
        return self.options.workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    @property
    def gpu_share(self) -> float:
        """Share of a GPU for each actor: 0 unless the device is `cuda`. Raises: NotReady."""
        if self.settings.device != "cuda":
            return 0.0
        gpus = self.ray.cluster_resources().get("GPU", 0)
        if not gpus:
            raise NotReady("--engine ray --device cuda: no machine of the cluster has a GPU. Choose --device cpu.")
        return 1.0 / max(1, math.ceil(self.actors / float(gpus)))

    def facts(self) -> dict[str, str]:
        """Facts of the run, after a check that every machine has the same facts and folders. Raises: NotReady."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, share = self.ray, self.gpu_share
        # the first input of the command line, which every machine must be able to read
        first = next((name for name in self.options.inputs if is_url(name) or os.path.lexists(name)), None)
        first = os.path.abspath(first) if first and not is_url(first) else first
        ask = ray.remote(num_cpus=1, num_gpus=share, max_retries=0)(machine_facts)
        replies: list[tuple[str, Any]] = []
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1 and node["Resources"].get("GPU", 0) >= share:
                on_node = ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
                reply = on_node.remote(self.settings, str(self.options.out), self.run, first)
                replies.append((str(node["NodeManagerAddress"]), reply))
        if not replies:
            raise NotReady("--engine ray: no machine of the cluster has a free core.")
        by_machine: dict[str, dict[str, str]] = {}
        for machine, reply in replies:
            try:
                facts = by_machine[machine] = ray.get(reply, timeout=_FACTS_S)
            except ray.exceptions.RayError as error:
                raise NotReady(
                    f"machine {machine} cannot label: {last_line(error)}. It needs this version of Mien, Ray and "
                    "pyarrow."
                ) from error
            if "problem" in facts:
                raise NotReady(f"machine {machine}: {facts['problem']}")
        return agreed(same_precision(by_machine))


def same_precision(by_machine: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Facts of each machine, with fp32 for all if only some CPUs are faster with int8."""
    if {facts.get("precision") for facts in by_machine.values()} != {"fp32", "int8"}:
        return by_machine
    return {machine: facts | {"precision": "fp32"} for machine, facts in by_machine.items()}


def agreed(by_machine: dict[str, dict[str, str]]) -> dict[str, str]:
    """Facts of all machines. Raises: NotReady, naming a machine that differs."""
    first, facts = next(iter(by_machine.items()))
    for machine, own in by_machine.items():
        unequal = (name for name in facts if own.get(name) != facts[name])
        if different := [f"{name} {own.get(name)} instead of {facts[name]}" for name in unequal]:
            raise NotReady(
                f"machine {machine} differs from {first}: {', '.join(different)}. All machines need the same."
            )
    return facts


def machine_facts(settings: Settings, out: str, run: str, first: str | None) -> dict[str, str]:
    """Facts of a machine of the cluster, or its `problem`."""
    folder = Path(out)
    if not is_current(folder, run):
        return {
            "problem": f"cannot find the output folder {out} of this run. Use a folder that is shared by all machines."
        }
    if first is not None and not is_url(first) and not os.path.lexists(first):
        return {"problem": f"cannot find the input {first}. Use a path that is the same on all machines."}
    try:
        mark = parts_dir(folder) / f"{socket.gethostname()}-{os.getpid()}"
        mark.touch()
        mark.unlink()
        if first is not None and is_url(first):
            check_store(first)
        return facts_of(open_pipeline(settings))
    except OSError as error:
        return {"problem": f"cannot write into {out} ({error.strerror or error})"}
    except MienError as error:
        return {"problem": str(error)}
