"""Fixed batch sizes compared with the plain session, on the CPU."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mien.app.errors import ProviderUnavailable
from mien.app.inference.runtime.cuda_batches import PLAIN_SIZE, FixedBatches
from mien.app.inference.runtime.sessions import GRAPH_ID
from tests.support import random_crops, tiny_graph


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(tiny_graph().SerializeToString(), providers=["CPUExecutionProvider"])


class Fake:
    """The session on the CPU with wrong logits or little memory; records the runs."""

    def __init__(self, session: Any, *, error: float = 0.0, memory: int = 64) -> None:
        self._session, self._error = session, error
        self._memory = memory  # faces
        self.graph_ids: list[str | None] = []
        self.sizes: list[int] = []
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        logits = binding.get_outputs()[0]
        if logits.shape()[0] > self._memory:
            raise RuntimeError("BFCArena: Failed to allocate memory")
        self.threads.add(threading.get_ident())
        self.graph_ids.append(options and options.get_run_config_entry(GRAPH_ID))
        self.sizes.append(logits.shape()[0])
        self._session.run_with_iobinding(binding, None)
        if self._error:
            logits.update_inplace((logits.numpy() + self._error).astype(np.float32))


def opened(plain: Any, captured: Any, sizes: tuple[int, ...] = (4, 1, 8)) -> FixedBatches:
    return FixedBatches(plain, device="cpu", input_name="crops", output_name="logits", sizes=sizes, captured=captured)


def expect_logits(runner: FixedBatches, session: onnxruntime.InferenceSession, count: int) -> None:
    crops = random_crops(count)
    assert runner.run(crops) == pytest.approx(session.run(None, {"crops": crops})[0], abs=1e-5)


def test_batches_do_not_leak_into_each_other(session: onnxruntime.InferenceSession) -> None:
    runner = opened(session, Fake(session))
    crops = random_crops(8)[::3]  # not contiguous, and padded
    before = runner.run(crops)
    kept = before.copy()
    for count in (8, 4):
        runner.run(random_crops(count, seed=9))
    assert np.array_equal(before, kept)
    assert np.array_equal(runner.run(crops), kept)


def test_a_cuda_graph_is_replayed_under_its_own_id_in_one_thread(session: onnxruntime.InferenceSession) -> None:
    plain, captured = Fake(session), Fake(session)
    runner = opened(plain, captured, (1, 4, 64))
    assert plain.sizes[-1] == PLAIN_SIZE, "attention maps are plain runs of this size"
    assert set(plain.graph_ids) == {None}, "the plain session captures nothing"
    for fake in (plain, captured):
        fake.graph_ids.clear()
    for count in (3, 1, 5, 69):
        expect_logits(runner, session, count)
    assert captured.graph_ids == ["4", "1", "64", "64", "64"]
    assert plain.graph_ids == [], "a new size would take long"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(runner.run, [random_crops(1)] * 4))
    assert len(captured.threads) == 1


def test_a_cuda_graph_that_is_not_correct_or_has_no_memory_is_not_used(
    session: onnxruntime.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    for fake, captured, max_batch, reason in (
        (Fake(session, error=0.1), (), PLAIN_SIZE, "no CUDA graphs of 1 crops and more: its logits differ by 0.1"),
        (Fake(session, memory=32), (1, 4, 32), 32, "no CUDA graphs of 64 crops and more: BFCArena"),
    ):
        runner = opened(session, fake, (1, 4, 32, 64))
        assert (runner.captured_sizes, runner.max_batch) == (captured, max_batch)
        assert reason in caplog.text
        expect_logits(runner, session, 70)
    with pytest.raises(ProviderUnavailable, match=r"32 faces do not run on the GPU \(BFCArena"):
        opened(Fake(session, memory=2), None)
