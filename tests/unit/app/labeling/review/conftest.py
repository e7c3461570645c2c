"""The review page of a labeled folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mien.app.labeling.review.server import create_review_app
from tests.unit.app.labeling.conftest import Labeled


def opened(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.fixture
def open_page(own: Labeled) -> Iterator[Callable[..., TestClient]]:
    with ExitStack() as pages:
        yield lambda *sample: pages.enter_context(opened(create_review_app(own.out, *sample)))


@pytest.fixture
def page(open_page: Callable[..., TestClient]) -> TestClient:
    return open_page()


def decide(page: TestClient, file: str, label: str, **more: object) -> int:
    return page.post("/api/decisions", json={"file": file, "face": 0, "label": label} | more).status_code
