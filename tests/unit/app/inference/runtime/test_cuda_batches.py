"""Fixed batch sizes compared with the plain session, on the CPU."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mien.app.inference.runtime.cuda_batches import FixedBatches
from mien.app.inference.runtime.sessions import GRAPH_ID
from mien.data.contract import CROP_PX, LABELS
from tests.support import random_crops, tiny_graph


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(tiny_graph().SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def runner(session: onnxruntime.InferenceSession) -> FixedBatches:
    return FixedBatches(session, device="cpu", input_name="crops", output_name="logits", sizes=(4, 1, 8))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16, 21])
def test_padded_and_split_batches_equal_the_plain_session(
    runner: FixedBatches, session: onnxruntime.InferenceSession, count: int
) -> None:
    crops = random_crops(count, seed=count)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5


def test_zero_crops_give_zero_rows(runner: FixedBatches) -> None:
    assert runner.run(np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)).shape == (0, len(LABELS))


def test_leftovers_of_an_earlier_batch_do_not_leak(runner: FixedBatches) -> None:
    crops = random_crops(2)
    before = runner.run(crops)
    runner.run(random_crops(8, seed=9))
    assert np.array_equal(runner.run(crops), before)


def test_results_are_not_overwritten_by_the_next_run(runner: FixedBatches) -> None:
    first = runner.run(random_crops(4, seed=1))
    kept = first.copy()
    runner.run(random_crops(4, seed=2))
    assert np.array_equal(first, kept)


def test_non_contiguous_crops_are_accepted(runner: FixedBatches) -> None:
    wide = random_crops(8)
    assert np.array_equal(runner.run(wide[::2]), runner.run(wide[::2].copy()))


def test_threads_can_share_a_runner(runner: FixedBatches) -> None:
    batches = [random_crops(3, seed=seed) for seed in range(6)]
    expected = [runner.run(batch) for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(runner.run, batches * 20))
    assert np.array_equal(results, expected * 20)


class Captured:
    """A fake session with CUDA graphs that records the graph id of each run."""

    def __init__(self, session: Any, *, error: float = 0.0, breaks: bool = False) -> None:
        self._session, self._error, self._breaks = session, error, breaks
        self.graph_ids: list[str] = []

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def get_outputs(self) -> Any:
        return self._session.get_outputs()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if self._breaks:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.graph_ids.append(options.get_run_config_entry(GRAPH_ID))
        self._session.run_with_iobinding(binding, None)
        if self._error:
            logits = binding.get_outputs()[0]
            logits.update_inplace((logits.numpy() + self._error).astype(np.float32))


class Slow(Captured):
    """The plain session with a delay of two milliseconds, so that the other one is faster."""

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        assert options is None, "the plain session captures nothing"
        time.sleep(0.002)
        self._session.run_with_iobinding(binding, None)


def chosen(plain: Any, captured: Any) -> FixedBatches:
    return FixedBatches(plain, device="cpu", input_name="crops", output_name="logits", sizes=(1, 4), captured=captured)


def test_a_faster_cuda_graph_is_replayed_under_its_own_id(session: onnxruntime.InferenceSession) -> None:
    captured = Captured(session)
    runner = chosen(Slow(session), captured)
    assert runner.captured_sizes == (1, 4)
    captured.graph_ids.clear()
    crops = random_crops(5)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5
    assert captured.graph_ids == ["4", "1"]


def test_a_cuda_graph_that_is_not_faster_is_not_used(session: onnxruntime.InferenceSession) -> None:
    runner = chosen(session, SlowCaptured(session))
    assert runner.captured_sizes == ()


class SlowCaptured(Captured):
    """CUDA graphs that are slower than the plain run."""

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        time.sleep(0.002)
        super().run_with_iobinding(binding, options)


def test_a_cuda_graph_with_different_logits_is_not_used(
    session: onnxruntime.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    runner = chosen(Slow(session), Captured(session, error=0.1))
    assert runner.captured_sizes == ()
    assert "logits differ by 0.1" in caplog.text


def test_a_failed_capture_falls_back_to_the_plain_run(session: onnxruntime.InferenceSession) -> None:
    runner = chosen(session, Captured(session, breaks=True))
    assert runner.captured_sizes == ()
    crops = random_crops(3)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5
