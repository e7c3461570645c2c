"""Overload, several processes, and memory over many requests; `make soak` runs the long form."""

import asyncio
import itertools
import os
import random
import re
import signal
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.sync.client import connect

from benchmarks.load import REFUSED, Connection, Outcome, closed_loop, open_loop, percentile, request_bytes
from tests.integration.service.conftest import Serve
from tests.serving import Server
from tests.support import encoded, gradient_image, sample_photo

QUEUE = 32
PHOTOS = [encoded(gradient_image(width, 160), "JPEG") for width in (160, 200, 240, 280)]
REQUESTS = [request_bytes(photo, "image/jpeg", host="localhost") for photo in PHOTOS]


def _capacity(server: Server, count: int) -> float:
    outcomes = asyncio.run(closed_loop(server.address, REQUESTS, count=count, concurrency=8))
    assert {outcome.status for outcome in outcomes} == {200}
    return count / max(outcome.started_s + outcome.took_s for outcome in outcomes)


@dataclass(frozen=True, slots=True)
class Overload:
    """Result of an overload: latencies in ms, intended and actual requests per second, recovery time in s."""

    statuses: Counter[int]
    p50_ms: float
    p99_ms: float
    capacity: float
    sent_per_s: float
    deepest_queue: int
    recovered_s: float


def _overload(serve: Serve, seconds: float) -> Overload:
    server = serve(max_queue=QUEUE, max_per_client=0, max_wait_s=0.8)
    capacity = _capacity(server, 60)
    rate = 10 * capacity
    with _watched(server) as depths:
        outcomes = asyncio.run(open_loop(server.address, REQUESTS, count=int(rate * seconds), rate=rate))
    ended = time.monotonic()
    _wait_until_served(server)
    accepted_s = [outcome.took_s for outcome in outcomes if outcome.status == 200]
    result = Overload(
        statuses=Counter(outcome.status for outcome in outcomes),
        p50_ms=percentile(accepted_s, 0.5) * 1000,
        p99_ms=percentile(accepted_s, 0.99) * 1000,
        capacity=capacity,
        sent_per_s=len(outcomes) / max(outcome.started_s + outcome.took_s for outcome in outcomes),
        deepest_queue=max(depths),
        recovered_s=time.monotonic() - ended,
    )
    print(result)
    return result


@contextmanager
def _watched(server: Server) -> Iterator[list[int]]:
    """Depth of the queue, sampled five times per second."""
    depths: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            with suppress(httpx.HTTPError):  # an overloaded service may refuse this request, too
                ready = httpx.get(f"{server.url}/ready", timeout=5).raise_for_status()
                depths.append(ready.json()["queue_depth"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield depths
    finally:
        ended.set()
        watcher.join()


def _wait_until_served(server: Server) -> None:
    """Wait until twenty consecutive requests are accepted and the queue is empty."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        calm = asyncio.run(closed_loop(server.address, REQUESTS, count=20, concurrency=2))
        ready = httpx.get(f"{server.url}/ready").json()
        if {outcome.status for outcome in calm} == {200} and ready["queue_depth"] == ready["requests_inside"] == 0:
            return
    raise AssertionError("the service had not recovered after a minute")


def _check_bounded(result: Overload) -> None:
    assert set(result.statuses) <= {200, 503}, "a result or a rejection, and nothing lost"
    assert result.statuses[503] > result.statuses[200] > 0
    assert result.deepest_queue <= QUEUE


@pytest.mark.slow
def test_ten_times_overload_is_rejected_and_not_queued(serve: Serve) -> None:
    """The long form also checks the latency, on an idle machine."""
    result = _overload(serve, 3)
    _check_bounded(result)
    assert result.recovered_s <= 15


@pytest.mark.soak
def test_a_minute_of_ten_times_overload(serve: Serve) -> None:
    result = _overload(serve, 60)
    _check_bounded(result)
    assert result.sent_per_s > 5 * result.capacity, "the client sent enough to overload the service"
    assert result.deepest_queue > 0, "the queue is used"
    assert result.p99_ms <= 2000
    assert result.recovered_s <= 5


def test_worker_processes_share_the_port_and_count_together(serve: Serve) -> None:
    server = serve(workers=2)
    for _ in range(12):  # each on its own connection, so that both processes get some
        response = httpx.post(f"{server.url}/v1/expressions", content=PHOTOS[0], headers={"content-type": "image/jpeg"})
        assert response.status_code == 200
    for _ in range(4):
        text = httpx.get(f"{server.url}/metrics").text
        assert 'mien_images_total{outcome="no_face"} 12.0' in text, text
    assert server.stop() == 0
    assert not list((server.folder / "tmp").iterdir()), "the folder of the shared counters is gone"


def test_gauges_add_up_over_workers_and_forget_those_that_were_killed(serve: Serve) -> None:
    server = serve(workers=2)
    workers = [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", server.log.read_text())]
    assert len(workers) == 2

    def shown() -> set[float]:
        texts = [httpx.get(f"{server.url}/metrics").text for _ in range(8)]  # any worker responds
        return {float(re.findall(r"^mien_streams (\S+)", text, re.MULTILINE)[0]) for text in texts}

    with ExitStack() as streams:
        url = server.url.replace("http", "ws") + "/v1/stream"
        clients = [streams.enter_context(connect(url)) for _ in range(4)]
        assert shown() == {4.0}
        os.kill(workers[0], signal.SIGKILL)
        time.sleep(0.5)
        open_now = 0
        for client in clients:
            with suppress(ConnectionClosed):
                client.ping().wait(1)
            open_now += client.protocol.state is State.OPEN
        end = time.monotonic() + 60
        while shown() != {float(open_now)} and time.monotonic() < end:
            time.sleep(0.5)
        assert shown() == {float(open_now)}
    end = time.monotonic() + 30
    while shown() != {0.0} and time.monotonic() < end:
        time.sleep(0.5)
    assert shown() == {0.0}


async def _abort(address: tuple[str, int], request: bytes) -> None:
    _, writer = await asyncio.open_connection(*address)
    writer.write(request[: len(request) // 2])
    await writer.drain()
    writer.close()


def _with_size(png: bytes, width: int, height: int) -> bytes:
    """The PNG with another size in its header and a valid checksum."""
    header = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def _mixed(server: Server, count: int) -> Counter[int]:
    """Good, bad, huge and aborted requests in random order, eight clients."""
    chance = random.Random(0)  # noqa: S311  # a repeatable load
    huge = _with_size(encoded(gradient_image(64, 64)), 30_000, 30_000)

    def image(body: bytes, kind: str = "image/jpeg") -> bytes:
        return request_bytes(body, kind, host="localhost")

    kinds: dict[str, list[bytes]] = {
        "good": REQUESTS,
        "bad": [image(b"x"), image(PHOTOS[0][:900]), image(b"\x89PNG\r\n\x1a\n")],
        "huge": [image(huge, "image/png"), image(bytes(3_000_000), "image/png")],
        "wrong": [image(b"{}", "application/json"), b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    }
    statuses: Counter[int] = Counter()

    async def client() -> None:
        connection = Connection(*server.address)
        for _ in range(count // 8):
            kind = chance.choices(("good", "bad", "huge", "wrong", "abort"), (60, 15, 5, 10, 10))[0]
            if kind == "abort":
                await _abort(server.address, REQUESTS[0])
            else:
                statuses[await connection.send(chance.choice(kinds[kind]))] += 1
        connection.close()

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(8)))

    asyncio.run(all_clients())
    return statuses


def _memory(serve: Serve, *, warm: int, count: int, limit_mb: float) -> None:
    server = serve()
    _mixed(server, warm)
    before = server.memory_mb()
    statuses = _mixed(server, count)
    grown = server.memory_mb() - before
    print(f"{count} requests: {dict(statuses)}, resident {before:.0f} MB, grown {grown:+.1f} MB")
    assert set(statuses) <= {200, 404, 413, 415, 422, 503}, statuses
    assert statuses[200] > count / 3
    assert all(statuses[refused] > 0 for refused in (404, 413, 415, 422)), "every kind of bad request was sent"
    assert grown <= limit_mb
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_memory_does_not_grow_over_mixed_requests(serve: Serve) -> None:
    _memory(serve, warm=200, count=600, limit_mb=50)


@pytest.mark.soak
def test_memory_does_not_grow_over_a_hundred_thousand_mixed_requests(serve: Serve) -> None:
    _memory(serve, warm=4000, count=100_000, limit_mb=50)


def test_concurrent_responses_equal_sequential_ones(common: Server) -> None:
    photos = [encoded(gradient_image(300 + 10 * step, 260), "PNG") for step in range(12)]

    def widths(body: dict[str, list[dict[str, int]]]) -> list[int]:
        return [image["width"] for image in body["images"]]

    async def ask() -> None:
        limits = httpx.Limits(max_connections=16)  # more bodies at once take longer than the server waits for one
        async with httpx.AsyncClient(base_url=common.url, timeout=60, limits=limits) as client:

            async def one(step: int) -> None:
                body = {"content": photos[step], "headers": {"content-type": "image/png"}}
                response = await client.post("/v1/expressions", **body)
                assert widths(response.json()) == [300 + 10 * step]

            order = [step for step in range(12) for _ in range(10)]
            random.Random(1).shuffle(order)  # noqa: S311  # a repeatable order
            await asyncio.gather(*(one(step) for step in order))

    asyncio.run(ask())


def test_the_load_client_distinguishes_rejected_and_answered_requests(serve: Serve) -> None:
    server = serve()
    outcomes = asyncio.run(closed_loop(server.address, REQUESTS, count=4, concurrency=2))
    assert [type(outcome) for outcome in outcomes] == [Outcome] * 4
    server.stop()
    refused = asyncio.run(closed_loop(server.address, REQUESTS, count=4, concurrency=2))
    assert {outcome.status for outcome in refused} == {REFUSED}


def _form(photo: bytes) -> bytes:
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    return (part + photo + b"\r\n") * 16 + b"--x--\r\n"


def _attack(server: Server, bodies: list[bytes], seconds: float) -> Counter[int]:
    """Six clients that send these bodies again and again, faster than they can be served."""
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds

    def send(first: int) -> None:
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        for number in itertools.count(first):
            if time.monotonic() > end:
                return
            with suppress(httpx.HTTPError):
                url = f"{server.url}/v1/expressions?annotate=true&crops=true"
                body = bodies[number % len(bodies)]
                statuses[httpx.post(url, content=body, headers=headers, timeout=60).status_code] += 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(send, range(6)))
    return statuses


@pytest.mark.timeout(300)
def test_a_mix_of_the_largest_requests_takes_the_stated_memory_and_frees_it(serve: Serve) -> None:
    """Requests of 16 images with the released model: 49.7 megapixels each, 196 faces each, or 3 MB of noise each."""
    rows = np.zeros((7000, 7100, 3), np.uint8)
    rows[::35] = np.random.default_rng(0).integers(0, 60, (200, 7100, 1), np.uint8)
    large = encoded(rows, "PNG", compress_level=1)
    face = Image.open(sample_photo()).convert("RGB").crop((150, 0, 330, 180)).resize((110, 110))
    faces = encoded(np.tile(np.asarray(face), (14, 14, 1)), "JPEG")
    noise = np.random.default_rng(0).bytes(3_000_000)
    server = serve(model="fast", request_timeout_s=4)
    server.reset_peak()
    statuses = _attack(server, [_form(large), _form(faces), _form(noise)], 8)
    peak_mb = server.peak_mb()
    end = time.monotonic() + 40  # the images in progress are decoded to their end
    while (after_mb := server.memory_mb()) > 750 and time.monotonic() < end:
        time.sleep(0.5)
    print(f"{dict(statuses)}, peak {peak_mb:.0f} MB, after {after_mb:.0f} MB")
    assert set(statuses) <= {200, 413, 415, 503}
    assert statuses[413] + statuses[503] > 0, "requests timed out"
    assert peak_mb < 1200
    assert after_mb < 750, "nothing is kept but the arenas of the networks"
    assert httpx.get(f"{server.url}/ready").json()["requests_inside"] == 0
