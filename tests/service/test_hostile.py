"""A thousand malicious files sent to a server: no crash, no 5xx, limited time and memory."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from benchmarks.load import request_bytes
from mien.app.labeling.journal import Journal
from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image, sample_photo
from tests.support.hostile import METADATA, corpus
from tests.support.serving import Server

ALLOWED = {HTTPStatus.OK, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, 422}


@pytest.mark.timeout(400)
def test_no_hostile_file_crashes_stalls_or_bloats_the_service(common: Server) -> None:
    files = list(corpus())
    assert len({case.name for case in files}) == len(files) >= 1000, "every file has a name of its own"
    statuses: Counter[int] = Counter()
    slowest, fattest = (0.0, ""), (0.0, "")
    with httpx.Client(base_url=common.url, timeout=20) as client:
        client.post("/v1/expressions", content=files[0].payload, headers={"content-type": "image/jpeg"})
        for case in files:
            before = common.memory_mb()
            common.reset_peak()
            used = common.cpu_s()
            answer = client.post("/v1/expressions", content=case.payload, headers={"content-type": case.kind})
            assert answer.status_code in (ALLOWED if case.payload else {422}), (case.name, answer.text)
            slowest = max(slowest, (common.cpu_s() - used, case.name))
            fattest = max(fattest, (common.peak_mb() - before, case.name))
            statuses[answer.status_code] += 1
    print(f"{sum(statuses.values())} files: {dict(statuses)}, slowest {slowest}, fattest {fattest}")
    # a valid image is looked at with a long side of 1,600 px, for which the detector takes about 100 MB
    assert statuses[200] > 40, "valid files are labeled"
    assert slowest[0] <= 2, f"{slowest[1]} took {slowest[0]:.2f} s of processor time"
    assert fattest[0] <= 250, f"{fattest[1]} took {fattest[0]:.0f} MB"
    assert common.process.poll() is None
    assert "Traceback" not in common.log.read_text()


def _attacks(results: str) -> dict[str, bytes]:
    """Requests of an attacker by name; `results` is the path of many results of a job."""
    files = {f"image: {name}": make(1) for name, make in METADATA.items()}
    files["image: 50 megapixels in 0.2 MB"] = encoded(np.zeros((7000, 7100, 3), np.uint8))
    bodies = {name: (payload, "image/jpeg") for name, payload in files.items()}
    bodies["JSON: 5 million brackets"] = (b'{"images": ' + b"[" * 5_000_000, "application/json")
    bodies["a request hidden after an upgrade"] = (b"GET /metrics HTTP/1.1\r\n\r\n", "image/jpeg\r\nUpgrade: h2c")
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return {
        **{name: request_bytes(*body, host="localhost", close=True) for name, body in bodies.items()},
        "a header of 20 MB": get.format("/health").encode() + b"X: " + b"a" * 20_000_000,
        "a page of a job with 18,816 faces": get.format(f"{results}?limit=1000").encode() + b"\r\n",
        "all results of that job as CSV": get.format(f"{results}?format=csv").encode() + b"\r\n",
    }


def _repeat_result(out: Path, count: int) -> None:
    """Give a job with one image so many, each with the faces of the first one."""
    with closing(Journal(out)) as journal:
        (labeled,) = journal.images()
        assert len(labeled.faces) * count == 18_816
        names = [f"{number}.jpg" for number in range(count)]
        journal.scan((replace(labeled.input, name=name, row=None) for name in names), lambda _count: None)
        journal.save(replace(labeled, input=item) for item in journal.begin([item for item, _ in journal.todo(0)]))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_attacks_by_four_clients_take_little_time_and_memory_and_honest_requests_do_not_wait(
    serve: Serve, tmp_path: Path
) -> None:
    """Prints a table: bytes, processor time and memory of one of four requests at once; an honest one beside them."""
    server = serve(jobs_dir=tmp_path / "jobs")
    face = Image.open(sample_photo()).convert("RGB").crop((150, 0, 330, 180)).resize((110, 110))
    faces = encoded(np.tile(np.asarray(face), (14, 14, 1)), "JPEG")
    job = httpx.post(f"{server.url}/v1/jobs", files=[("images", ("0.jpg", faces))]).json()
    url = f"/v1/jobs/{job['id']}"
    eventually(lambda: httpx.get(server.url + url).json()["state"] == "done", timeout_s=300)
    _repeat_result(tmp_path / "jobs" / job["id"] / "out", 96)
    honest = request_bytes(encoded(gradient_image(160, 120), "JPEG"), "image/jpeg", host="localhost", close=True)

    def attack(request: bytes) -> tuple[float, list[bytes]]:
        with ThreadPoolExecutor(4) as clients:
            attackers = [clients.submit(server.send, request) for _ in range(4)]
            time.sleep(0.1)
            began = time.monotonic()
            assert server.send(honest).startswith(b"HTTP/1.1 200")
            return time.monotonic() - began, [attacker.result() for attacker in attackers]

    attack(honest)
    print("| four at once | bytes each | response | processor time each | memory each | an honest request |")
    for name, request in _attacks(f"{url}/results").items():
        server.reset_peak()
        before_s, before_mb = server.cpu_s(), server.memory_mb()
        waited_s, responses = attack(request)
        used_s, grown_mb = (server.cpu_s() - before_s) / 4, max(0, server.peak_mb() - before_mb) / 4
        status = ", ".join(sorted({response[9:12].decode() or "reset" for response in responses}))
        print(f"| {name} | {len(request):,} | {status} | {used_s:.2f} s | {grown_mb:.0f} MB | {waited_s:.2f} s |")
        assert used_s < 3, name
        assert grown_mb < 250, name
        assert waited_s < 5, name
        assert b"mien_requests" not in b"".join(responses)
