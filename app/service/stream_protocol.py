"""WebSockets whose clients read, close, and send no text, or are disconnected; `mien serve` passes it to uvicorn."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

STATE_KEY: Final = "mien.service"  # of the service, in the application's lifespan state


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


class StreamProtocol(ReadInTime, WebSocketsSansIOProtocol):
    """One WebSocket; a client that does not close is disconnected."""

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
