"""The deployment on Ray Serve, started as documented: a cluster on this machine that loses a replica under load."""

import itertools
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import httpx
import pytest

from mien.app.settings import Settings
from mien.data.contract import decode
from tests.support import ROOT, encoded, environment_of, eventually
from tests.support.serving import serving, wait_until_ready

_SERVE = ROOT / ".venv-ray/bin/serve"
_CLIENTS, _PHOTOS = 4, 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of the application on a Ray cluster, by the command of docs/deployment.md."""
    if not _SERVE.exists():
        pytest.skip("Ray Serve is not installed: sh requirements/install.sh .venv-ray ray")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 8000)) != 0, "another program uses the port of Ray Serve, 8000"
    environment = environment_of(detector="builtin", device="cpu", max_per_client=0)
    log = tmp_path / "ray.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [_SERVE, "run", "deploy.ray_serve:app"],
            cwd=ROOT,
            env=environment | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_num_cpus": "3"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            wait_until_ready("http://127.0.0.1:8000", process, log, timeout_s=240)
            yield "http://127.0.0.1:8000"
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _replicas() -> set[int]:
    """Process ids of the replicas, which Ray names by title."""
    processes = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {int(pid) for pid in re.findall(r"^ *(\d+) ray::ServeReplica:\S*Mien", processes, re.MULTILINE)}


def _labels(address: str, photo: bytes) -> list[dict[str, Any]] | None:
    """The images of a response without their times; None if the request was lost."""
    headers = {"content-type": "image/jpeg"}
    with suppress(httpx.HTTPError):
        response = httpx.post(f"{address}/v1/expressions", content=photo, headers=headers, timeout=120)
        return [image | {"timings_ms": None} for image in response.raise_for_status().json()["images"]]
    return None


@pytest.mark.soak
def test_a_killed_replica_loses_only_what_was_in_flight_on_it_and_answers_stay_those_of_the_plain_service(
    cluster: str, tmp_path: Path
) -> None:
    samples = itertools.cycle([decode(path.read_bytes()) for path in sorted((ROOT / "samples/photos").glob("*.jpg"))])
    photos = [
        encoded(cv2.resize(sample, (320 + number, 320 + number)), "JPEG")
        for number, sample in zip(range(_PHOTOS), samples, strict=False)
    ]
    artifact = Settings().model
    with (
        serving(tmp_path, artifact, detector="builtin", max_per_client=0) as plain,
        ThreadPoolExecutor(_CLIENTS) as clients,
    ):
        expected = list(clients.map(lambda photo: _labels(plain.url, photo), photos))
    assert sum(len(images[0]["faces"]) for images in expected if images) > _PHOTOS / 2
    before = _replicas()
    assert len(before) == 2
    killed = min(before)
    with ThreadPoolExecutor(_CLIENTS) as clients:
        answers = [clients.submit(_labels, cluster, photo) for photo in photos]
        answers[_PHOTOS // 5].result()
        os.kill(killed, signal.SIGKILL)
        results = [answer.result() for answer in answers]
    lost = [number for number, result in enumerate(results) if result is None]
    print(f"{len(lost)} of {_PHOTOS} requests were lost")
    assert len(lost) <= _CLIENTS, "no more is lost than was in flight"
    repeated = {number: _labels(cluster, photos[number]) for number in lost}
    assert [repeated.get(number, result) for number, result in enumerate(results)] == expected
    eventually(lambda: len(_replicas() - {killed}) >= 2, failure=_replicas, timeout_s=120)
