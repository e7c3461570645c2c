"""Fixed batch sizes with bound memory against the plain session, on the CPU."""

import threading

import numpy as np
import onnxruntime
import pytest

from app.buckets import BucketRunner
from data.contract import CROP_PX, LABELS, Array
from tests.support import random_crops, tiny_graph


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(tiny_graph().SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def runner(session: onnxruntime.InferenceSession) -> BucketRunner:
    return BucketRunner(session, device="cpu", input_name="crops", output_name="logits", sizes=(4, 1, 8))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16, 21])
def test_padded_and_split_batches_give_what_the_session_gives(
    runner: BucketRunner, session: onnxruntime.InferenceSession, count: int
) -> None:
    crops = random_crops(count, seed=count)
    assert np.abs(runner.run(crops) - session.run(None, {"crops": crops})[0]).max() < 1e-5


def test_no_crop_gives_no_row(runner: BucketRunner) -> None:
    assert runner.run(np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)).shape == (0, len(LABELS))


def test_what_an_earlier_batch_left_behind_changes_nothing(runner: BucketRunner) -> None:
    crops = random_crops(2)
    before = runner.run(crops)
    runner.run(random_crops(8, seed=9))
    assert np.array_equal(runner.run(crops), before)


def test_an_answer_is_not_overwritten_by_the_next(runner: BucketRunner) -> None:
    first = runner.run(random_crops(4, seed=1))
    kept = first.copy()
    runner.run(random_crops(4, seed=2))
    assert np.array_equal(first, kept)


def test_crops_that_are_a_slice_of_a_larger_array_are_taken(runner: BucketRunner) -> None:
    wide = random_crops(8)
    assert np.array_equal(runner.run(wide[::2]), runner.run(wide[::2].copy()))


def test_threads_take_turns(runner: BucketRunner) -> None:
    batches = [random_crops(3, seed=seed) for seed in range(6)]
    expected = [runner.run(batch) for batch in batches]
    answers: dict[int, Array] = {}

    def work(index: int) -> None:
        for _ in range(20):
            answers[index] = runner.run(batches[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(answers[index], expected[index]) for index in range(6))
