"""Options of the uvicorn server."""

from app.service.server import uvicorn_options
from app.settings import Settings


def test_a_worker_has_a_minute_to_start_before_it_is_replaced() -> None:
    assert uvicorn_options(Settings())["timeout_worker_healthcheck"] == 60
