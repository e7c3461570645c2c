"""HTTP/1.1 connections with limits that uvicorn lacks.

uvicorn closes connections that are idle between requests, but it waits forever for incomplete headers and for clients
that do not read the response, and it accepts headers of any size. When it stops, it drops connections whose first bytes
have not arrived yet.
"""

import json
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from mien.app.errors import QueueFull
from mien.app.service.middleware import REQUEST_ID, new_id
from mien.app.service.problems import MEDIA_TYPE, Problem, problem_body, problem_for, status_problem

STATE_KEY: Final = "mien.connections"
MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 100
_FLUSH_S: Final = 10.0
_LAST_REQUEST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Connections:
    """Limits of the connections of this process, and a callback for rejections.

    header_timeout_s: time to receive the headers of a request. max_connections: number of open connections.
    """

    header_timeout_s: float = 10.0
    max_connections: int = 1024
    refused: Callable[[str], None] = lambda _slug: None


class _HeadTooLarge(Exception):  # never leaves this file: the parser wraps what its callbacks raise
    """A head of more bytes or headers than the limit."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, with limits from the application's lifespan state under `STATE_KEY`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits: Connections = app_state.get(STATE_KEY, Connections())
        self._head_timer: TimerHandle | None = None
        self._stopping = False
        self._unread_bytes = 0  # bytes passed to the parser since its last event other than a part of the headers
        self._head_bytes = 0  # size of the URL and the headers so far
        self._headers = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            full = f"{self._limits.max_connections} connections are open: try again in a moment"
            self._refuse(problem_for(QueueFull()), full)
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data to the parser in pieces; its time is quadratic in the number of parts of a header."""
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self.transport.is_closing():
                return
            piece = data[start : start + MAX_HEAD_BYTES]
            self._unread_bytes += len(piece)
            super().data_received(piece)
            if self._unread_bytes > MAX_HEAD_BYTES:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._headers = 0
        if self._head_timer is None:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._add_to_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_came()
        self._unread_bytes = 0
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        super().on_message_complete()

    def shutdown(self) -> None:
        """Respond to running requests and to those that arrive within one second, then close."""
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        idle = cycle is None or cycle.response_complete
        if idle and not self._stopping:
            self._stopping = True
            self._unset_keepalive_if_required()
            self.loop.call_later(_LAST_REQUEST_S, self.shutdown)
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits until the client has read all buffered data; abort if it never does.
        self.loop.call_later(_FLUSH_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            self._refuse_head()
        else:
            self._refuse(status_problem(HTTPStatus.BAD_REQUEST), msg)

    def _add_to_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            raise _HeadTooLarge

    def _refuse_head(self) -> None:
        limits = f"at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADERS} headers are accepted"
        self._refuse(status_problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), f"request headers: {limits}")

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        detail = f"the request headers did not arrive within {self._limits.header_timeout_s:g} s"
        self._refuse(status_problem(HTTPStatus.REQUEST_TIMEOUT), detail)

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Respond without the application, and close."""
        if self.transport.is_closing():
            return
        self._limits.refused(problem.slug)
        request_id = new_id()
        self._log_refusal(problem, request_id)
        body = json.dumps(problem_body(problem, detail))
        retry = f"Retry-After: {problem.retry_after_s}\r\n" if problem.retry_after_s is not None else ""
        head = f"HTTP/1.1 {problem.status} {problem.title}\r\nContent-Type: {MEDIA_TYPE}\r\n{retry}"
        head += f"{REQUEST_ID}: {request_id}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(f"{head}{body}".encode("ascii"))
        self.transport.close()

    def _log_refusal(self, problem: Problem, request_id: str) -> None:
        address = get_remote_addr(self.transport)
        client = f"{address[0]}:{address[1]}" if address else ""
        line = '%s - "%s %s HTTP/%s" %d'  # the fields that uvicorn's formatter expects; the head is not to be trusted
        self.access_logger.info(line, client, "-", "-", "1.1", problem.status, extra={"request_id": request_id})
