"""Batching of concurrent threads: correct results, no waiting when idle, and nothing lost."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from mien.app.inference.batcher import Batcher
from mien.data.contract import Array
from tests.support import eventually

TIMEOUT_S = 20


def test_a_batch_never_exceeds_its_size_requests_stay_whole_and_a_failure_reaches_only_its_caller() -> None:
    batches, gate, started = list[int](), Event(), Event()

    def twice(numbers: Array) -> Array:
        started.set()
        assert gate.wait(TIMEOUT_S)
        batches.append(len(numbers))
        if 255 in numbers:
            raise RuntimeError("a poisoned number")
        return np.stack([numbers, numbers], axis=1)

    batcher = Batcher(twice, max_items=8)
    calls = [range(1), range(5), range(4), [255], range(3), range(2), range(1)]
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(batcher, np.array(calls[0]))]
        assert started.wait(TIMEOUT_S)
        for values in calls[1:]:
            futures.append(pool.submit(batcher, np.array(values)))
            eventually(lambda: len(batcher._jobs) == len(futures) - 1)
        gate.set()
    for values, future in zip(calls, futures, strict=True):
        if 255 in values:
            with pytest.raises(RuntimeError, match="poisoned"):
                future.result()
        else:
            assert future.result().tolist() == [[value] * 2 for value in values]
    assert batches == [1, 5, 8, 4, 1, 3, 3], "the parts of a batch that failed run alone"
    assert len(batcher(np.arange(30))) == 30, "one that is larger than a batch"
