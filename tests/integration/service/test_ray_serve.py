"""The deployment on Ray Serve: a local cluster that loses a replica under load."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import free_port
from tests.support import ROOT

# In a process of its own, as Ray starts many threads and processes, and ends them with it.
_PROGRAM = """
import asyncio, os, signal, sys, time
from collections import Counter
import httpx, ray, ray.util.state
from ray import serve
from benchmarks.load import closed_loop, request_bytes
from deploy.ray_serve import app
from tests.support import ROOT, encoded, gradient_image

def replicas():
    return [actor for actor in ray.util.state.list_actors() if actor.state == "ALIVE" and "Mien" in actor.class_name]

async def load_and_kill():
    requests = [request_bytes(encoded(gradient_image(320, 240), "JPEG"), "image/jpeg", host="localhost")]
    load = asyncio.create_task(closed_loop(("127.0.0.1", port), requests, count=400, concurrency=CLIENTS))
    await asyncio.sleep(1)
    assert not load.done()
    os.kill(killed.pid, signal.SIGKILL)
    return await load

CLIENTS, port = 4, int(sys.argv[1])
ray.init(num_cpus=3, include_dashboard=True, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(app)
ready = httpx.get(f"http://127.0.0.1:{port}/ready", timeout=30).json()
assert ready["status"] == "ready", ready
killed, *others = replicas()
assert len(others) == 1
statuses = Counter(outcome.status for outcome in asyncio.run(load_and_kill()))
print(statuses)
assert 400 - statuses[200] <= CLIENTS, "no more is lost than was in flight"
end = time.monotonic() + 60
while len(new := {actor.pid for actor in replicas()} - {killed.pid}) < 2:
    assert time.monotonic() < end, "the replica is replaced"
    time.sleep(0.5)
serve.shutdown()
"""


@pytest.mark.soak
def test_a_killed_replica_loses_only_what_was_in_flight_on_it(artifact: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        pytest.skip("Ray Serve is not installed: sh requirements/install.sh .venv-ray ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
    environment |= {
        "MIEN_MODEL": str(artifact),
        "MIEN_DETECTOR": "builtin",
        "MIEN_DEVICE": "cpu",
        "MIEN_MAX_PER_CLIENT": "0",
    }
    environment |= {"PYTHONPATH": f"{ROOT}:{environment.get('PYTHONPATH', '')}", "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(free_port())],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=400)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, text[-4000:]
    print(text[-200:])
