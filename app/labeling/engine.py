"""Labeling on all cores with bounded memory: the main thread forms batches and commits them, a pool labels them.

OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so threads suffice, and pixels are not copied between
processes. Batches are committed in the order in which they were formed; only a few are in progress at a time.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from mien.app.inference.pipeline import Pipeline
from mien.app.labeling.containers import BrokenContainer, NotAVideo, expected_frames, open_container, page_count
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import CONTAINERS, TIFFS, failure_of, file_sha256, local_file
from mien.app.labeling.records import Failure, Input, Result
from mien.app.labeling.signals import Interrupts
from mien.app.labeling.summary import Outcome
from mien.app.labeling.worker import label_batch

BATCH: Final = 16
# Members of archives and decoded frames stay in memory until they are labeled; a batch ends with the one that exceeds
# this.
BATCH_BYTES: Final = 32_000_000
FRAME_BATCH: Final = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Images labeled and committed together, or the end of a container, with a failure if there is one."""

    inputs: list[Input]
    closes: Input | None = None
    failure: Failure | None = None
    sha256: str = ""


_IN_PROGRESS = deque[tuple[Batch, Future[tuple[list[Result], dict[str, float]]]]]


@dataclass(slots=True)
class Run:
    """A run over the inputs of a journal; `images` is a bit mask of the images that are written during labeling."""

    journal: Journal
    options: LabelOptions
    pipeline: Pipeline
    outcome: Outcome
    images: int = 0
    report: Reporter = field(default_factory=Reporter)
    signals: Interrupts = field(default_factory=Interrupts)

    def label(self) -> bool:
        """Label what is not labeled yet, until all is done, a signal comes or the limit is reached.

        Returns: whether all is labeled. Raises: LabelingError.
        """
        left, complete = self.options.limit, False
        pending: _IN_PROGRESS = deque()
        workers, out = self.outcome.workers, self.journal.out
        with ThreadPoolExecutor(workers, thread_name_prefix="label") as pool, self.signals.deferred():
            try:
                for batch in self._batches():
                    inputs = batch.inputs if left is None else batch.inputs[:left]
                    begun = self.journal.begin(inputs)
                    task = pool.submit(label_batch, self.pipeline, begun, self.options, out, self.journal.earlier)
                    pending.append((batch, task))
                    if len(pending) > workers + 2:
                        self._commit(pending)
                    if self.signals.received or len(inputs) < len(batch.inputs):
                        break
                    left = None if left is None else left - len(inputs)
                else:
                    complete = True
                while pending:
                    self._commit(pending)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return complete

    def _commit(self, pending: _IN_PROGRESS) -> None:
        batch, future = pending.popleft()
        results, timings_ms = future.result()
        if batch.closes is not None:
            self.journal.close_container(batch.closes, batch.failure, batch.sha256)
        self.journal.save(results)
        reused = sum(result.reused for result in results)
        self.outcome.new += len(results) - reused
        self.outcome.reused += reused
        for stage, milliseconds in timings_ms.items():
            seconds = self.outcome.stage_seconds.get(stage, 0.0) + milliseconds / 1000
            self.outcome.stage_seconds[stage] = seconds
        errors = [(result.input.name, result.reason, result.error) for result in results if result.status == "error"]
        self.report.labeled(len(results), sum(len(result.faces) for result in results), errors)

    def _batches(self) -> Iterator[Batch]:
        """Batches of inputs sorted by name; they do not depend on what is labeled already."""
        batch: list[Input] = []
        count = 0
        for item, done in self.journal.todo(self.images):
            if item.kind == "file" and not done and item.name.lower().endswith(TIFFS) and page_count(item.path) > 1:
                item = self.journal.has_pages(item)  # noqa: PLW2901
            if item.kind not in CONTAINERS:
                count += 1
                batch += [] if done else [item]
            if batch and (count == BATCH or item.kind in CONTAINERS):
                yield Batch(batch)
                batch = []
            if item.kind in CONTAINERS and not done:
                yield from self._container_batches(item)
            count = 0 if item.kind in CONTAINERS else count % BATCH
        if batch:
            yield Batch(batch)

    def _container_batches(self, container: Input) -> Iterator[Batch]:
        """Batches of the images of an archive or a video, and its end; images before a damage are included."""
        self.journal.open_container(container)
        batch: list[Input] = []
        sha256, failure = "", None
        try:
            with local_file(container.path) as path:
                sha256 = file_sha256(path)
                if container.kind == "video":
                    self.report.expect(expected_frames(path, self.options))
                opened = replace(container, sha256=sha256)
                settings, is_done = self.pipeline.settings, self.journal.is_done
                images = open_container(opened, path, self.options, settings, is_done)
                count = weight = 0
                for child, done in images:
                    batch += [] if done else [child]
                    count, weight = count + 1, weight + (BATCH_BYTES // FRAME_BATCH if child.is_frame else child.size)
                    if count == BATCH or weight >= BATCH_BYTES:
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
