"""Overload, several processes, and memory over many requests; `make soak` runs the long form."""

import asyncio
import itertools
import json
import os
import random
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.sync.client import connect

from benchmarks.load import Connection, Outcome, closed_loop, open_loop, percentile, request_bytes
from mien.app.service.keys import key_hash
from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image, sample_photo
from tests.support.hostile import corpus
from tests.support.serving import Server

QUEUE = 32
PHOTOS = [encoded(gradient_image(width, 160), "JPEG") for width in (160, 200, 240, 280)]
REQUESTS = [request_bytes(photo, "image/jpeg", host="localhost") for photo in PHOTOS]


@pytest.mark.parametrize(
    ("seconds", "times"),
    # four times is the most that a client on the same cores sends for a minute
    [pytest.param(3, 10, marks=pytest.mark.slow), pytest.param(60, 4, marks=pytest.mark.soak)],
)
def test_overload_is_rejected_and_not_queued(serve: Serve, seconds: float, times: int) -> None:
    """Send more than the service can do; each request gets a result or a rejection, and the queue stays bounded.

    The long form also checks the latency, on an idle machine.
    """
    server = serve(max_queue=QUEUE, max_per_client=0)
    outcomes = asyncio.run(closed_loop(server.address, REQUESTS, count=60, concurrency=8))
    assert {outcome.status for outcome in outcomes} == {200}
    capacity = 60 / max(outcome.started_s + outcome.took_s for outcome in outcomes)
    rate, depths = times * capacity, [0]

    async def watched_load() -> list[Outcome]:
        load = asyncio.create_task(open_loop(server.address, REQUESTS, count=int(rate * seconds), rate=rate))
        async with httpx.AsyncClient(base_url=server.url, timeout=5) as client:
            while not load.done():
                with suppress(httpx.HTTPError):  # an overloaded service may refuse this request, too
                    ready = (await client.get("/ready")).raise_for_status()
                    depths.append(ready.json()["queue_depth"])
                await asyncio.sleep(0.2)
        return load.result()

    def is_calm() -> bool:
        """Twenty consecutive requests are accepted, and the queue is empty."""
        calm = asyncio.run(closed_loop(server.address, REQUESTS, count=20, concurrency=2))
        ready = server.get("/ready").json()
        return {outcome.status for outcome in calm} == {200} and ready["queue_depth"] == ready["requests_inside"] == 0

    outcomes = asyncio.run(watched_load())
    ended = time.monotonic()
    eventually(is_calm)
    recovered_s = time.monotonic() - ended
    statuses = Counter(outcome.status for outcome in outcomes)
    p99_s = percentile([outcome.took_s for outcome in outcomes if outcome.status == 200], 0.99)
    sent = len(outcomes) / max(outcome.started_s + outcome.took_s for outcome in outcomes) / capacity
    print(f"{statuses}, p99 {p99_s:.2f} s, sent {sent:.1f} times {capacity:.0f}/s, recovered in {recovered_s:.1f} s")
    assert set(statuses) <= {200, 503}, "a result or a rejection, and nothing lost"
    assert statuses[503] > statuses[200] > 0
    assert max(depths) <= QUEUE
    assert recovered_s <= 15
    if seconds == 60:
        assert sent > 3, "the client sent enough to overload the service"
        assert max(depths) > 0, "the queue is used"
        assert p99_s <= 2
        assert recovered_s <= 5


def test_worker_processes_share_the_port_and_count_together_without_those_that_were_killed(serve: Serve) -> None:
    server = serve(workers=2, log_format="json")
    workers = [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", server.log.read_text())]
    assert len(workers) == 2
    for _ in range(12):  # each on its own connection, so that both processes get some
        assert server.post(PHOTOS[0]).status_code == 200
    for _ in range(4):
        assert 'mien_images_total{outcome="no_face"} 12.0' in server.get("/metrics").text
    assert all(json.loads(line)["level"] == "info" for line in server.log.read_text().splitlines())

    def shown() -> set[float]:
        texts = [server.get("/metrics").text for _ in range(8)]  # any worker responds
        return {float(re.findall(r"^mien_streams (\S+)", text, re.MULTILINE)[0]) for text in texts}

    with ExitStack() as streams:
        url = server.url.replace("http", "ws") + "/v1/stream"
        clients = [streams.enter_context(connect(url)) for _ in range(4)]
        assert shown() == {4.0}
        os.kill(workers[0], signal.SIGKILL)

        def open_now() -> int:
            for client in clients:
                with suppress(ConnectionClosed):
                    client.ping().wait(1)
            return sum(client.protocol.state is State.OPEN for client in clients)

        eventually(lambda: shown() == {float(open_now())}, failure=shown)
    eventually(lambda: shown() == {0.0}, failure=shown)
    assert server.stop() == 0
    assert not list((server.folder / "tmp").iterdir()), "the folder of the shared counters is gone"


def _with_key(request: bytes, key: str) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\nX-API-Key: %s\r\n\r\n" % key.encode(), 1)


@pytest.mark.parametrize(
    ("count", "grown_mb"),
    [
        pytest.param(1500, 300, marks=pytest.mark.slow),  # not all buffers exist after 500 requests
        pytest.param(20_000, 50, marks=pytest.mark.soak),
    ],
)
def test_honest_requests_are_answered_beside_hostile_clients(serve: Serve, count: int, grown_mb: float) -> None:
    """Three honest clients with a key, beside hostile ones: every malicious file, aborted and stalled uploads, unread
    responses, stray bytes. Every honest request is answered, and memory does not grow after the first third."""
    server = serve(api_key_sha256=f"{key_hash('honest')},{key_hash('hostile')}", header_timeout_s=2, body_timeout_s=2)
    chance = random.Random(0)  # noqa: S311  # a repeatable load
    honest = [_with_key(request, "honest") for request in REQUESTS]
    hostile = [_with_key(request_bytes(case.payload, case.kind, host="localhost"), "hostile") for case in corpus()]
    asset = _with_key(b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n", "hostile")
    left, statuses, refused = iter(range(count)), Counter[int](), Counter[int]()

    async def sends(requests: list[bytes], counts: Counter[int]) -> None:
        connection = Connection(*server.address)
        for _ in left:
            counts[await connection.send(chance.choice(requests))] += 1
        connection.close()

    async def dawdles(ended: asyncio.Event) -> None:
        while not ended.is_set():
            body = chance.choice([hostile[0][:-9], asset * 6, b"\r\n", hostile[1][: len(hostile[1]) // 2]])
            _, writer = await asyncio.open_connection(*server.address)
            writer.write(body)
            await asyncio.sleep(chance.choice([0, 0.1, 3]))
            writer.transport.abort()

    async def phase(requests: int) -> None:
        nonlocal left
        left, ended = iter(range(requests)), asyncio.Event()
        slow = [asyncio.create_task(dawdles(ended)) for _ in range(20)]
        await asyncio.gather(*(sends(honest, statuses) for _ in range(3)), *(sends(hostile, refused) for _ in range(3)))
        ended.set()
        await asyncio.gather(*slow)

    asyncio.run(phase(count // 3))
    before_mb = server.memory_mb()
    asyncio.run(phase(count - count // 3))
    grown = server.memory_mb() - before_mb
    print(f"honest {dict(statuses)}, hostile {dict(refused)}, resident {before_mb:.0f} MB, grown {grown:+.1f} MB")
    assert set(statuses) == {200}, "every honest request was answered"
    assert set(refused) <= {200, 408, 413, 415, 422, 429, 503}
    assert min(statuses.total(), refused.total()) > count / 10
    assert grown <= grown_mb
    assert "Traceback" not in server.log.read_text()


def test_concurrent_responses_equal_sequential_ones(common: Server) -> None:
    with Image.open(sample_photo()) as photo:
        widths = range(300, 480, 15)
        photos = [encoded(np.asarray(photo.convert("RGB").resize((width, 300))), "JPEG") for width in widths]
    sequential = [common.post(photo).json()["images"][0]["faces"] for photo in photos]
    assert all(sequential)
    assert len({json.dumps(faces) for faces in sequential}) == len(photos), "each photo has its own faces"

    order = [step for step in range(len(photos)) for _ in range(5)]
    random.Random(1).shuffle(order)  # noqa: S311  # a repeatable order
    with ThreadPoolExecutor(16) as clients:  # more bodies at once take longer than the server waits for one
        responses = list(clients.map(common.post, [photos[step] for step in order]))
    assert [response.json()["images"][0]["faces"] for response in responses] == [sequential[step] for step in order]


@pytest.mark.timeout(300)
def test_a_mix_of_the_largest_requests_takes_the_stated_memory_and_frees_it(serve: Serve) -> None:
    """Requests of 16 images with the released model: 49.7 megapixels each, 196 faces each, or 3 MB of noise each."""
    rows = np.zeros((7000, 7100, 3), np.uint8)
    rows[::35] = np.random.default_rng(0).integers(0, 60, (200, 7100, 1), np.uint8)
    large = encoded(rows, "PNG", compress_level=1)
    face = Image.open(sample_photo()).convert("RGB").crop((150, 0, 330, 180)).resize((110, 110))
    faces = encoded(np.tile(np.asarray(face), (14, 14, 1)), "JPEG")
    noise = np.random.default_rng(0).bytes(3_000_000)
    server = serve(model="fast", request_timeout_s=2)
    server.reset_peak()
    statuses, end = Counter[int](), time.monotonic() + 3

    def attack(first: int) -> None:
        for number in itertools.count(first):
            if time.monotonic() > end:
                return
            with suppress(httpx.HTTPError):
                url = f"{server.url}/v1/expressions?annotate=true&crops=true"
                files = [("images", (large, faces, noise)[number % 3])] * 16
                statuses[httpx.post(url, files=files, timeout=60).status_code] += 1

    with ThreadPoolExecutor(6) as attackers:
        list(attackers.map(attack, range(6)))
    peak_mb = server.peak_mb()
    print(f"{dict(statuses)}, peak {peak_mb:.0f} MB")
    assert set(statuses) <= {200, 413, 415, 503}
    assert statuses[413] + statuses[503] > 0, "requests timed out"
    assert peak_mb < 1200
    # the images in progress are decoded to their end; then nothing is kept but the arenas of the networks
    eventually(lambda: server.memory_mb() < 750, failure=server.memory_mb)
    assert httpx.get(f"{server.url}/ready").json()["requests_inside"] == 0
