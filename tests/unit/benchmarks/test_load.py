"""The load generator: requests, connections and summary."""

import asyncio

import pytest

from benchmarks.load import Connection, Outcome, summary


def test_the_summary_counts_statuses_and_times_successes_only() -> None:
    outcomes = [Outcome(200, 0.0, 0.010), Outcome(200, 1.0, 0.030), Outcome(503, 1.5, 0.5), Outcome(0, 1.0, 9.0)]
    found = summary(outcomes)
    assert found["statuses"] == {"0": 1, "200": 2, "503": 1}
    assert found["p50_ms"] == pytest.approx(30)
    assert found["requests_per_s"] == pytest.approx(0.2)
    assert found["seconds"] == 10


@pytest.mark.anyio
async def test_a_connection_closed_by_the_server_is_reopened() -> None:
    """A server may close an idle connection at any time; the next request uses a new one."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        connection = Connection("127.0.0.1", server.sockets[0].getsockname()[1])
        for _ in range(2):
            assert await connection.send(b"GET / HTTP/1.1\r\n\r\n") == 200
            await asyncio.sleep(0.1)
        connection.close()
