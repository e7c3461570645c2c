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


class Fake:
    """The session on the CPU, with a delay, an error of its logits or a failure; records the graph id of each run."""

    def __init__(self, session: Any, *, delay_s: float = 0.0, error: float = 0.0, breaks: bool = False) -> None:
        self._session, self._delay_s, self._error, self._breaks = session, delay_s, error, breaks
        self.graph_ids: list[str | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if self._breaks:
            raise RuntimeError("operation not permitted when stream is capturing")
        time.sleep(self._delay_s)
        self.graph_ids.append(options and options.get_run_config_entry(GRAPH_ID))
        self._session.run_with_iobinding(binding, None)
        if self._error:
            logits = binding.get_outputs()[0]
            logits.update_inplace((logits.numpy() + self._error).astype(np.float32))


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


@pytest.mark.parametrize("flaw", [{"delay_s": 0.02}, {"error": 0.1}, {"breaks": True}], ids=["slow", "wrong", "broken"])
def test_a_cuda_graph_that_is_not_faster_or_not_correct_is_not_used(
    session: onnxruntime.InferenceSession, flaw: dict[str, Any]
) -> None:
    runner = chosen(Fake(session, delay_s=0.002), Fake(session, **flaw))
    assert runner.captured_sizes == ()
    crops = random_crops(3)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5
