"""How long may a client dawdle? HTTP/1.1 with time-outs where uvicorn has none.

uvicorn closes a connection that idles between requests. It waits for ever for a head that never ends, and for a client
that does not read its answer; and when it stops it drops connections whose first bytes are still on their way.
"""

import json
from asyncio import AbstractEventLoop, TimerHandle, Transport
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.errors import Problem, QueueFull, problem_for
from app.problems import MEDIA_TYPE, problem_body

STATE_KEY: Final = "mien.connection_limits"
_FLUSH_S: Final = 10.0
_LAST_WORD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds for the head of a request to arrive, and open connections of this process."""

    header_timeout_s: float = 10.0
    max_connections: int = 1024


class PatientProtocol(HttpToolsProtocol):
    """One connection. Its limits come from the application's lifespan state, under `STATE_KEY`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits: ConnectionLimits = app_state.get(STATE_KEY, ConnectionLimits())
        self._head_timer: TimerHandle | None = None
        self._stopping = False

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

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Answer what is under way, and what arrives in the next second; then close."""
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        idle = cycle is None or cycle.response_complete
        if idle and not self._stopping:
            self._stopping = True
            self._unset_keepalive_if_required()
            self.loop.call_later(_LAST_WORD_S, self.shutdown)
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # closing waits until the peer has read what is buffered; one that never reads is cut off
        self.loop.call_later(_FLUSH_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "bad-request", "Bad Request"), msg)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        detail = f"the head of the request did not arrive within {self._limits.header_timeout_s:g} s"
        self._refuse(Problem(408, "request-timeout", "Request Timeout"), detail)

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Answer below the application and close."""
        if self.transport.is_closing():
            return
        body = json.dumps(problem_body(problem, detail))
        retry = f"Retry-After: {problem.retry_after_s}\r\n" if problem.retry_after_s is not None else ""
        head = f"HTTP/1.1 {problem.status} {problem.title}\r\nContent-Type: {MEDIA_TYPE}\r\n{retry}"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode("ascii"))
        self.transport.close()
