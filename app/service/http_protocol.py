"""HTTP/1.1 connections and WebSockets with the limits that uvicorn lacks: a number per client, and deadlines.

uvicorn closes connections that are idle between requests, but it waits forever for incomplete headers and bodies, and
for clients that do not read the response. Arriving data does not extend a deadline. The parser is h11: it ignores
every `Upgrade` but websocket and reads the body, where httptools ends, so that uvicorn would take it for the next
request.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets import Headers
from websockets.http11 import Response

from mien.app.errors import QueueFull
from mien.app.service.logs import request_id
from mien.app.service.middleware import MAX_HEAD_BYTES, REQUEST_ID, new_id
from mien.app.service.problems import Problem, problem_for, problem_response, raw_response, status_problem

STATE_KEY: Final = "mien.service"  # of the service, in the application's lifespan state
_LATE: Final = status_problem(HTTPStatus.REQUEST_TIMEOUT)
_AFTER_ROUTE_S: Final = 1.0  # a route that reads the body responds first, with its own error
_CHECKS: Final = 8  # per deadline of headers


class ReadInTime(asyncio.Protocol):
    """A connection that is aborted if its client does not read, within `header_timeout_s`, what fills the buffers."""

    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def service(self) -> Any:
        return self.app_state[STATE_KEY]

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.service.settings.header_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._unread.cancel()
        super().resume_writing()


class BoundedProtocol(ReadInTime, H11Protocol):
    """One connection."""

    _waits_for: tuple[str, object] = "", None  # and in which request
    _since_s = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        limit, total = self.service.settings.max_connections, len(self.connections)
        own = sum(self._address(connection) == self._address(self) for connection in self.connections)
        # one client may use half of what is left, so that there is room for others
        if total > limit // 2 and own > limit - total + 1:
            self._refuse(problem_for(QueueFull()), f"{total - 1} connections are open: try again in a moment")
        self._check()

    @staticmethod
    def _address(connection: Any) -> str:
        return connection.client[0] if connection.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data in pieces, because h11 limits the size of an unfinished head only."""
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if not self.transport.is_closing() and self.transport.get_protocol() is self:
                super().data_received(data[start : start + MAX_HEAD_BYTES])

    def _check(self) -> None:
        """Refuse a client that takes too long, or abort its connection; called several times per deadline."""
        if self.transport.get_protocol() is not self and not self.transport.is_closing():
            return  # a stream has its own deadlines
        (what, timeout_s), now_s = self._awaited(), self.loop.time()
        if what != self._waits_for[0] or self.scope is not self._waits_for[1]:
            self._waits_for, self._since_s = (what, self.scope), now_s
        elif what == "close" and now_s - self._since_s >= timeout_s:
            self.transport.abort()
            return
        elif what and now_s - self._since_s >= timeout_s:
            self._refuse(_LATE, f"no {what} within {timeout_s:g} s")
        self._timer = self.loop.call_later(self.service.settings.header_timeout_s / _CHECKS, self._check)

    def _awaited(self) -> tuple[str, float]:
        """What the connection waits for, and for how long."""
        settings, state = self.service.settings, self.conn.their_state
        scope: Any = self.scope  # None before the first request
        if self.transport.is_closing():
            return "close", settings.header_timeout_s
        if state is h11.SEND_BODY:
            return "body", settings.body_timeout_s + _AFTER_ROUTE_S
        if state is h11.IDLE and (scope is None or self.conn.trailing_data[0]):
            return "request headers", settings.header_timeout_s
        return "", 0.0  # routes have their own time limit, and uvicorn closes idle connections

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Pass the connection on to a stream, unless websockets waits for a body or has read no request."""
        super().handle_websocket_upgrade(event)
        if not cast("StreamProtocol", self.transport.get_protocol()).handshake_initiated:
            self._refuse(status_problem(HTTPStatus.BAD_REQUEST), "WebSocket with a body, or a header above 8 KB")

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]  # of h11, which says more
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        self._refuse(status_problem(status), str(error or msg))

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Respond without the application, and close; abort if the response of a route has begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started and not self.cycle.response_complete:
                self.transport.abort()
                return
        self.service.metrics.rejections.labels(problem.slug).inc()
        id_ = new_id()
        client = f"{self.client[0]}:{self.client[1]}" if self.client else ""
        line = '%s - "%s %s HTTP/%s" %d'  # the fields that uvicorn's formatter expects; the head is not to be trusted
        self.access_logger.info(line, client, "-", "-", "1.1", problem.status, extra={"request_id": id_})
        self.transport.write(raw_response(problem, detail, {REQUEST_ID: id_}))
        self.transport.close()


class StreamProtocol(ReadInTime, WebSocketsSansIOProtocol):
    """One WebSocket; a client that does not close is disconnected."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.conn.reject = _rejection  # type: ignore[method-assign]

    async def run_asgi(self) -> None:
        await super().run_asgi()
        timeout_s = self.close_timeout + self.service.settings.header_timeout_s
        self.loop.call_later(timeout_s, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """Drop text, which no stream accepts: uvicorn logs a traceback if it is not UTF-8."""
        if self.curr_msg_data_type == "text":
            self.frames = []
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:
            # uvicorn sets it for refusals without a response only, and would log an error of the application
            self.handshake_complete = True


def _rejection(status: int, text: str) -> Response:
    """The response to a handshake that websockets refuses, which would be plain text."""
    problem, id_ = status_problem(status), new_id()
    request_id.set(id_)  # for the line that websockets logs
    response = problem_response(problem, text.strip(), headers={"Connection": "close", REQUEST_ID: id_})
    headers = Headers([(name.decode(), value.decode()) for name, value in response.raw_headers])
    return Response(status, problem.title, headers, bytes(response.body))
