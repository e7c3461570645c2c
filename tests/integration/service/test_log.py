"""What does the log of a start tell?"""

from collections.abc import Callable

import pytest

from app.providers import cuda_obstacle
from tests.integration.service.conftest import Server


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_that_falls_back_to_the_cpu_logs_it(serve: Callable[..., Server], workers: int) -> None:
    obstacle = cuda_obstacle()
    if obstacle is None:
        pytest.skip("this machine has a GPU")
    server = serve(device="auto", workers=workers)
    assert f"INFO:     device auto: the CPU is used, as {obstacle}" in server.log.read_text()


def test_a_service_for_the_cpu_has_nothing_to_tell(serve: Callable[..., Server]) -> None:
    assert "device" not in serve(device="cpu").log.read_text()
