"""Options of the uvicorn server, and environment of its worker processes."""

import os
from types import SimpleNamespace

import pytest

from mien.app.inference.runtime.sessions import CPU
from mien.app.service import server
from mien.app.settings import Settings


def test_worker_processes_keep_the_precision_that_their_parent_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = SimpleNamespace(precision="int8", provider=CPU)
    monkeypatch.setattr(server, "build_pipelines", lambda _: {"fast": SimpleNamespace(classifier=classifier)})
    monkeypatch.setattr(server, "Workers", lambda _, sockets: SimpleNamespace(run=sockets[0].close))
    monkeypatch.setattr(server.logging.config, "dictConfig", lambda _: None)
    monkeypatch.setattr(server.os, "environ", dict(os.environ))
    server.run(Settings(workers=2, port=0))
    assert server.os.environ["MIEN_PRECISION"] == "int8"
