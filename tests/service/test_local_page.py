"""Local page: address, port, and opening of the browser."""

import socket

import pytest

from mien.app.errors import StartupError
from mien.app.service import local_page
from mien.app.settings import Settings


def test_the_page_is_served_locally_and_a_used_port_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    opened: list[str] = []
    monkeypatch.setattr("mien.app.service.server.run", served.append)
    monkeypatch.setattr(local_page, "_open_when_ready", lambda address, browser: opened.append(f"{address} {browser}"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(StartupError, match=f"MIEN_PORT={port}"):
            local_page.serve_page(Settings(port=port), browser=True)
        busy = Settings().model_copy(update={"port": port, "host": "0.0.0.0"})  # noqa: S104  # must not be taken over
        busy.model_fields_set.discard("port")
        local_page.serve_page(busy, browser=True)
    (chosen,) = served
    assert chosen.host == "127.0.0.1"
    assert chosen.port not in {0, port}
    assert opened == [f"http://127.0.0.1:{chosen.port}/ True"]
