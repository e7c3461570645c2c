"""HTTP/1.1 connections with limits that uvicorn lacks.

uvicorn closes connections that are idle between requests, but it waits forever for incomplete headers and bodies and
for clients that do not read the response, and it accepts headers of any size. When it stops, it drops connections whose
first bytes have not arrived yet. It closes a connection after its last response although the request is still
arriving, so the client is reset and loses the response. Here, the rest of the request is discarded, and every state of
a connection has a deadline that arriving data does not extend.
"""

import json
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.http11 import Request
from websockets.server import ServerProtocol

from mien.app.errors import QueueFull
from mien.app.service.jobs import JOBS_PATH
from mien.app.service.middleware import REQUEST_ID, new_id
from mien.app.service.problems import MEDIA_TYPE, Problem, problem_body, problem_for, status_problem
from mien.app.service.state import Service

STATE_KEY: Final = "mien.service"
MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 100
_LATE: Final = status_problem(HTTPStatus.REQUEST_TIMEOUT)
_LAST_REQUEST_S: Final = 1.0
_AFTER_ROUTE_S: Final = 1.0  # a route that reads the body responds first, with its own error


class _HeadTooLarge(Exception):  # never leaves this file: the parser wraps what its callbacks raise
    """A head of more bytes or headers than the limit."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, with the limits of the service in the application's lifespan state under `STATE_KEY`.

    `header_timeout_s` is also the time for a client to read what fills the buffers of its connection.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._service: Service = app_state[STATE_KEY]
        self._settings = self._service.settings
        self._state = ""  # what the connection waits for, and for which request
        self._deadline: TimerHandle | None = None
        self._requests = 0  # heads received
        self._in_head = True  # also after data that begins no request, such as empty lines
        self._in_body = False
        self._pauses = 0
        self._ended = False  # lost, or passed on to a stream
        self._responding: RequestResponseCycle | None = None
        self._lingering = False  # the last response is complete, and its request still arrives
        self._stopping = False
        self._unread_bytes = 0  # bytes passed to the parser since its last event other than a part of the headers
        self._head_bytes = 0  # size of the URL and the headers so far
        self._headers = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            full = f"{self._settings.max_connections} connections are open: try again in a moment"
            self._refuse(problem_for(QueueFull()), full)
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._responding is not None:
            self._responding.disconnected = True  # uvicorn tells only the last one of pipelined requests
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self.transport.is_closing():  # this request came with the end of the last one
            return
        self._responding = cycle

        async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async def send_and_linger(message: ASGISendEvent) -> None:
                last = message["type"] == "http.response.body" and not message.get("more_body")
                if last and not cycle.keep_alive and self._in_body and cycle is self.cycle:
                    # uvicorn would close: a client that is still sending would be reset, and lose the response
                    cycle.keep_alive = self._lingering = True
                await send(message)

            await app(scope, receive, send_and_linger)

        super()._start_asgi_task(cycle, run)

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection on to a stream, which has its own deadlines."""
        super().handle_websocket_upgrade()
        stream = cast("StreamProtocol", self.transport.get_protocol())
        if not stream.handshake_initiated:  # websockets waits for a body, and writes no response to long headers
            detail = stream.refusal or "WebSocket with a body, or a header above 8 KB"
            self._refuse(status_problem(HTTPStatus.BAD_REQUEST), detail)
        self._end()

    def _update_deadline(self) -> None:
        """Start the timer of the connection's state, unless it runs already."""
        if self._ended:
            return
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        responding = cycle is not None and not cycle.response_complete
        wait_s: float | None
        late: Callable[[], object]
        if self.transport.is_closing():
            state, wait_s, late = "close", self._settings.header_timeout_s, self.transport.abort
        elif self.flow.write_paused:
            state, wait_s, late = f"unread {self._pauses}", self._settings.header_timeout_s, self.transport.abort
        elif self._in_body and not self.pipeline:
            state, late = f"body {self._requests}", partial(self._refuse, _LATE, "the body did not arrive in time")
            is_job = self.scope["path"] == JOBS_PATH
            timeout_s = self._settings.job_upload_timeout_s if is_job else self._settings.body_timeout_s
            wait_s = timeout_s + _AFTER_ROUTE_S
        elif responding:
            state, wait_s, late = "route", None, self.transport.abort  # routes have their own time limit
        elif self._in_head:
            state, wait_s = f"head {self._requests}", self._settings.header_timeout_s
            late = partial(self._refuse, _LATE, f"the request headers did not arrive within {wait_s:g} s")
        else:
            state, wait_s, late = f"idle {self._requests}", self.timeout_keep_alive, self.timeout_keep_alive_handler
        if state != self._state:
            self._cancel_deadline()
            self._state = state
            self._deadline = None if wait_s is None else self.loop.call_later(wait_s, late)

    def _end(self) -> None:
        self._cancel_deadline()
        self._ended = True

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        """Pass data to the parser in pieces; its time is quadratic in the number of parts of a header."""
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self._ended or self.transport.is_closing():
                return
            piece = data[start : start + MAX_HEAD_BYTES]
            self._unread_bytes += len(piece)
            self._in_head = not self._in_body
            super().data_received(piece)
            if self._unread_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
        self._update_deadline()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._headers = True, 0, 0

    def on_url(self, url: bytes) -> None:
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._add_to_head(len(name) + len(value))
        if not self._in_body:  # a trailer is no header (RFC 9110, section 6.5.1)
            super().on_header(name, value.rstrip(b" \t"))  # the parser leaves the space at the end

    def on_headers_complete(self) -> None:
        self._requests += 1
        self._in_head, self._in_body = False, True
        self._unread_bytes = 0
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._unread_bytes = 0
        super().on_message_complete()
        if self._lingering:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lingering and not self.transport.is_closing():
            self.transport.write_eof()
        self._update_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._pauses += 1
        self._update_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_deadline()

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
            self._update_deadline()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._update_deadline()

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

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Respond without the application, and close; abort if the response of a route has begun, or was the last."""
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        if self._lingering or (cycle is not None and cycle.response_started and not cycle.response_complete):
            self.transport.abort()
            return
        self._service.metrics.rejections.labels(problem.slug).inc()
        request_id = new_id()
        address = get_remote_addr(self.transport)
        client = f"{address[0]}:{address[1]}" if address else ""
        line = '%s - "%s %s HTTP/%s" %d'  # the fields that uvicorn's formatter expects; the head is not to be trusted
        self.access_logger.info(line, client, "-", "-", "1.1", problem.status, extra={"request_id": request_id})
        body = json.dumps(problem_body(problem, detail))
        retry = f"Retry-After: {problem.retry_after_s}\r\n" if problem.retry_after_s is not None else ""
        head = f"HTTP/1.1 {problem.status} {problem.title}\r\nContent-Type: {MEDIA_TYPE}\r\n{retry}"
        head += f"{REQUEST_ID}: {request_id}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(f"{head}{body}".encode("ascii"))
        self.transport.close()
        self._update_deadline()


class StreamProtocol(WebSocketsSansIOProtocol):
    """One WebSocket; a client that does not read, or does not close, is disconnected."""

    refusal = ""  # reason why the handshake is not accepted
    _unread: TimerHandle | None = None

    def handle_connect(self, event: Request) -> None:
        """Leave a refusal to the connection: websockets responds with plain text."""
        response = ServerProtocol().accept(event)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            super().handle_connect(event)
        else:
            self.refusal = response.body.decode().strip()[:300]

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_unread()
        super().resume_writing()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + self._timeout_s, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """Drop text, which no stream accepts: uvicorn logs a traceback if it is not UTF-8."""
        if self.curr_msg_data_type == "text":
            self.frames = []
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Close, and discard what still arrives: the client may lose the close code if it is reset while it sends."""
        if self.close_sent or (close := self.conn.close_sent) is None:
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()

    @property
    def _timeout_s(self) -> float:
        service: Service = self.app_state[STATE_KEY]
        return service.settings.header_timeout_s

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.close_sent:
            # uvicorn sets it for refusals without a response only, and would log an error of the application
            self.handshake_complete = True
