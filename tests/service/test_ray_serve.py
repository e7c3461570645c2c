"""The deployment on Ray Serve, started as documented: a cluster on this machine that loses a replica."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import ROOT, environment_of, eventually, sample_photo
from tests.support.serving import wait_until_ready

_ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[None]:
    """The application on a Ray cluster, by the command of docs/deployment.md."""
    serve, log = ROOT / ".venv-ray/bin/serve", tmp_path / "ray.log"
    if not serve.exists():
        pytest.skip("Ray Serve is not installed: sh requirements/install.sh .venv-ray ray")
    environment = environment_of(detector="builtin", device="cpu")
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_num_cpus": "3"}
    command = [serve, "run", "deploy.ray_serve:app"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        wait_until_ready(_ADDRESS, process, log, timeout_s=240)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _replicas() -> set[int]:
    """Process ids of the replicas, which Ray names by title."""
    processes = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {int(pid) for pid in re.findall(r"^ *(\d+) ray::ServeReplica:\S*Mien", processes, re.MULTILINE)}


def _faces() -> int:
    headers = {"content-type": "image/jpeg"}
    photo = sample_photo().read_bytes()
    response = httpx.post(f"{_ADDRESS}/v1/expressions", content=photo, headers=headers, timeout=120)
    return len(response.json()["images"][0]["faces"]) if response.is_success else 0


@pytest.mark.soak
@pytest.mark.usefixtures("cluster")
def test_two_replicas_label_and_one_that_is_killed_is_replaced() -> None:
    before = _replicas()
    assert (len(before), _faces()) == (2, 1)
    os.kill(min(before), signal.SIGKILL)
    eventually(lambda: _faces() == 1 and len(_replicas() - {min(before)}) >= 2, failure=_replicas, timeout_s=120)
