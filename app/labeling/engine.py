"""Labeling on all cores with bounded memory: the main thread forms batches and commits them, a pool labels them.

OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so threads suffice, and pixels are not copied between
processes. Batches are committed in the order in which they were formed; only a few are in progress at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from mien.app.inference.pipeline import Pipeline
from mien.app.labeling.containers import BrokenContainer, NotAVideo, expected_frames, open_container
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import CONTAINERS, failure_of, file_sha256
from mien.app.labeling.records import Failure, Input, Result
from mien.app.labeling.signals import Interrupts
from mien.app.labeling.summary import Outcome
from mien.app.labeling.worker import label_batch

BATCH: Final = 16
# Decoded frames stay in memory until they are labeled, so their batches are smaller.
FRAME_BATCH: Final = 4
# Members of archives stay in memory until they are labeled; a batch ends with the member that exceeds this.
BATCH_BYTES: Final = 32_000_000
_IN_PROGRESS = deque[tuple["Batch", Future[tuple[list[Result], dict[str, float]]]]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Images labeled and committed together, or the end of a container, with a failure if there is one."""

    inputs: list[Input]
    closes: Input | None = None
    failure: Failure | None = None
    sha256: str = ""


def label_inputs(
    journal: Journal,
    options: LabelOptions,
    pipeline: Pipeline,
    images: int,
    report: Reporter,
    signals: Interrupts,
    outcome: Outcome,
) -> bool:
    """Label what is not labeled yet and write `images`, until all is done, a signal comes or the limit is reached.

    Returns: whether all is labeled. Raises: LabelingError.
    """
    left, complete = options.limit, False
    pending: _IN_PROGRESS = deque()
    with ThreadPoolExecutor(outcome.workers, thread_name_prefix="label") as pool, signals.deferred():
        try:
            for batch in _batches(journal, options, images, pipeline.settings.max_bytes, report.expect):
                inputs = batch.inputs if left is None else batch.inputs[:left]
                begun = journal.begin(inputs)
                pending.append((batch, pool.submit(label_batch, pipeline, begun, options, journal.out)))
                if len(pending) > outcome.workers + 2:
                    _commit(journal, pending, report, outcome)
                if signals.received or len(inputs) < len(batch.inputs):
                    break
                left = None if left is None else left - len(inputs)
            else:
                complete = True
            while pending:
                _commit(journal, pending, report, outcome)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return complete


def _commit(journal: Journal, pending: _IN_PROGRESS, report: Reporter, outcome: Outcome) -> None:
    batch, future = pending.popleft()
    results, timings_ms = future.result()
    if batch.closes is not None:
        journal.close_container(batch.closes, batch.failure, batch.sha256)
    journal.save(results)
    outcome.new += len(results)
    for stage, milliseconds in timings_ms.items():
        outcome.stage_seconds[stage] = outcome.stage_seconds.get(stage, 0.0) + milliseconds / 1000
    errors = [(result.input.name, result.reason, result.error) for result in results if result.status == "error"]
    report.labeled(len(results), sum(len(result.faces) for result in results), errors)


def _batches(
    journal: Journal, options: LabelOptions, images: int, max_bytes: int, expect: Callable[[int], None]
) -> Iterator[Batch]:
    """Batches of inputs sorted by name; they do not depend on what is labeled already."""
    batch: list[Input] = []
    count = 0
    for item, done in journal.todo(images):
        if item.kind not in CONTAINERS:
            count += 1
            batch += [] if done else [item]
        if batch and (count == BATCH or item.kind in CONTAINERS):
            yield Batch(batch)
            batch = []
        if item.kind in CONTAINERS and not done:
            yield from _container_batches(journal, item, options, max_bytes, expect)
        count = 0 if item.kind in CONTAINERS else count % BATCH
    if batch:
        yield Batch(batch)


def _container_batches(
    journal: Journal, container: Input, options: LabelOptions, max_bytes: int, expect: Callable[[int], None]
) -> Iterator[Batch]:
    """Batches of the images of an archive or a video, and its end; images before a damage are included."""
    journal.open_container(container)
    size = FRAME_BATCH if container.kind == "video" else BATCH
    batch: list[Input] = []
    sha256, failure = "", None
    try:
        sha256 = file_sha256(container.path)
        if container.kind == "video":
            expect(expected_frames(container.path, options))
        opened = open_container(replace(container, sha256=sha256), options, max_bytes, journal.is_done)
        count = weight = 0
        for child, done in opened:
            batch += [] if done else [child]
            count, weight = count + 1, weight + (0 if child.is_frame else child.size)
            if count == size or weight >= BATCH_BYTES:
                if batch:
                    yield Batch(batch)
                batch, count, weight = [], 0, 0
    except NotAVideo as error:
        failure = Failure("not_an_image", str(error), "skipped")
    except BrokenContainer as error:
        failure = Failure("corrupt", str(error))
    except OSError as error:
        failure = failure_of(error, container.name)
    if batch:
        yield Batch(batch)
    yield Batch([], container, failure, sha256)
