"""Fixed batch sizes compared with the plain session, on the CPU."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mien.app.inference.runtime import cuda_batches
from mien.app.inference.runtime.cuda_batches import FixedBatches
from mien.app.inference.runtime.sessions import GRAPH_ID
from mien.data.contract import LABELS
from tests.support import random_crops, tiny_graph


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(tiny_graph().SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def runner(session: onnxruntime.InferenceSession) -> FixedBatches:
    return FixedBatches(session, device="cpu", input_name="crops", output_name="logits", sizes=(4, 1, 8))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 9, 16, 21])
def test_padded_and_split_batches_equal_the_plain_session(
    runner: FixedBatches, session: onnxruntime.InferenceSession, count: int
) -> None:
    crops = random_crops(count, seed=count)
    expected = session.run(None, {"crops": crops})[0] if count else np.empty((0, len(LABELS)))
    assert runner.run(crops) == pytest.approx(expected, abs=1e-5)


def test_batches_do_not_leak_into_each_other(runner: FixedBatches) -> None:
    crops = random_crops(8)[::3]  # not contiguous, and padded
    before = runner.run(crops)
    kept = before.copy()
    for count in (8, 4):
        runner.run(random_crops(count, seed=9))
    assert np.array_equal(before, kept)
    assert np.array_equal(runner.run(crops), kept)
    assert np.array_equal(runner.run(crops.copy()), kept)


class Fake:
    """The session on the CPU with a fake duration, wrong logits or a failure; records the graph id of each run."""

    now_s = 0.0

    def __init__(
        self, session: Any, *, delay_s: float = 0.001, error: float = 0.0, breaks: bool = False, memory: int = 8
    ) -> None:
        self._session, self._delay_s, self._error, self._breaks = session, delay_s, error, breaks
        self._memory = memory  # faces
        self.graph_ids: list[str | None] = []
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if self._breaks:
            raise RuntimeError("operation not permitted when stream is capturing")
        if binding.get_outputs()[0].shape()[0] > self._memory:
            raise RuntimeError("BFCArena: Failed to allocate memory")
        Fake.now_s += self._delay_s
        self.threads.add(threading.get_ident())
        self.graph_ids.append(options and options.get_run_config_entry(GRAPH_ID))
        self._session.run_with_iobinding(binding, None)
        if self._error:
            logits = binding.get_outputs()[0]
            logits.update_inplace((logits.numpy() + self._error).astype(np.float32))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_batches, "time", SimpleNamespace(perf_counter=lambda: Fake.now_s))


def chosen(plain: Any, captured: Any) -> FixedBatches:
    return FixedBatches(plain, device="cpu", input_name="crops", output_name="logits", sizes=(1, 4), captured=captured)


def test_a_faster_cuda_graph_is_replayed_under_its_own_id(session: onnxruntime.InferenceSession) -> None:
    plain, captured = Fake(session, delay_s=0.02), Fake(session)
    runner = chosen(plain, captured)
    assert runner.captured_sizes == (1, 4)
    assert set(plain.graph_ids) == {None}, "the plain session captures nothing"
    captured.graph_ids.clear()
    crops = random_crops(5)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5
    assert captured.graph_ids == ["4", "1"]


def test_cuda_graphs_are_captured_and_replayed_in_one_thread(session: onnxruntime.InferenceSession) -> None:
    captured = Fake(session)
    runner = chosen(Fake(session, delay_s=0.02), captured)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(runner.run, [random_crops(1)] * 4))
    assert len(captured.threads) == 1


def test_batches_that_exceed_the_memory_are_split(
    session: onnxruntime.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    runner = chosen(Fake(session, memory=2), None)
    assert runner.max_batch == 1
    assert "GPU batches of at most 1 faces: 4 do not run (BFCArena" in caplog.text
    crops = random_crops(3)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5


@pytest.mark.parametrize("flaw", [{"delay_s": 0.02}, {"error": 0.1}, {"breaks": True}], ids=["slow", "wrong", "broken"])
def test_a_cuda_graph_that_is_not_faster_or_not_correct_is_not_used(
    session: onnxruntime.InferenceSession, flaw: dict[str, Any]
) -> None:
    runner = chosen(Fake(session, delay_s=0.002), Fake(session, **flaw))
    assert runner.captured_sizes == ()
    crops = random_crops(3)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5
