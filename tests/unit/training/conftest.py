"""Settings of all tests of training."""

import pytest

from mien.training import metrics


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact intervals are of no use here, and a thousand resamples of each metric take seconds."""
    monkeypatch.setattr(metrics, "RESAMPLES", 100)
