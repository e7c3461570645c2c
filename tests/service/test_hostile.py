"""Hundreds of malicious files sent to a server: no crash, no 5xx, limited time and memory."""

from collections import Counter
from http import HTTPStatus

import httpx
import pytest

from tests.support.hostile import corpus
from tests.support.serving import Server

ALLOWED = {HTTPStatus.OK, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, 422}


@pytest.mark.timeout(400)
def test_no_hostile_file_crashes_stalls_or_bloats_the_service(common: Server) -> None:
    files = list(corpus())
    assert len({case.name for case in files}) == len(files) >= 500, "every file has a name of its own"
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
