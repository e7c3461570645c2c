"""Labeling on all cores with bounded memory: one thread forms groups, workers label them, the main thread commits.

Every worker processes complete groups in all stages. OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so
threads suffice, and pixels are not copied between processes. Groups are committed in the order in which they were
formed; only a few are in progress at a time.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mien.app.inference.pipeline import Pipeline
from mien.app.labeling.containers import BrokenContainer, Container, expected_frames, open_container
from mien.app.labeling.files import disk_errors
from mien.app.labeling.journal import Journal, Stored
from mien.app.labeling.kinds import CONTAINERS
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.reading import failure_of, file_sha256
from mien.app.labeling.records import Failure, ImageRecord, Item, Tally
from mien.app.labeling.request import Request
from mien.app.labeling.worker import Worker

GROUP: Final = 16
# Decoded frames stay in memory until they are labeled, so their groups are smaller.
FRAME_GROUP: Final = 4
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Group:
    """Images labeled and committed together; `closes` marks the end of a container, with a failure if there is one."""

    number: int
    parent: int | None
    items: tuple[Item, ...]
    closes: bool = False
    failure: Failure | None = None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks: for each image, and for additional images found in a container."""

    image: Callable[[ImageRecord], None]
    expect: Callable[[int], None]


class _Stopped(Exception):
    """Stops the thread that forms groups."""


class Engine:
    """One pass over the unlabeled inputs of the journal, with one worker per pipeline."""

    def __init__(
        self, journal: Journal, request: Request, pipelines: Sequence[Pipeline], products: int, watcher: Watcher
    ) -> None:
        self._journal, self._request = journal, request
        self._products, self._watcher = products, watcher
        folder = OutputFolder(journal.out, journal)
        self._workers = [Worker(pipeline, request, folder) for pipeline in pipelines]
        self._max_bytes = pipelines[0].settings.max_bytes
        self._reader = Journal(journal.out, read_only=True)
        self._stop = threading.Event()
        self._slots = threading.Semaphore(len(pipelines) + 2)
        self._groups: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Group, list[ImageRecord]] | Exception | None] = queue.SimpleQueue()
        self._number = 0
        self._left = request.limit
        self.limit_reached = False
        self.tally = Tally()

    def stop(self) -> None:
        """Stop forming groups; groups in progress are finished and committed."""
        self._stop.set()

    def run(self) -> None:
        """Label until all is done, `stop` is called or the limit is reached. Raises: LabelingError."""
        threads = [threading.Thread(target=self._form, name="groups", daemon=True)]
        threads += [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        try:
            self._commit_all(len(self._workers))
        finally:
            self._stop.set()
            for _ in range(len(self._workers) + 2):
                self._slots.release()
            for thread in threads:
                thread.join()
            self._reader.close()
            for worker in self._workers:
                for stage, seconds in worker.seconds.items():
                    self.tally.spend(stage, seconds)

    # The thread that forms groups

    def _form(self) -> None:
        try:
            for group in self._planned():
                while not self._slots.acquire(timeout=_POLL_S):
                    self._check()
                self._check()
                self._groups.put(group)
        except _Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # handed to the committing thread, which raises it
            self._results.put(error)
        finally:
            for _ in self._workers:
                self._groups.put(None)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _planned(self) -> Iterator[Group]:
        """Groups of inputs sorted by name; they do not depend on what is labeled already."""
        members: list[Stored] = []
        for stored in self._reader.sources(self._products):
            if stored.item.kind in CONTAINERS:
                yield from self._plain(members)
                members = []
                yield from self._container(stored)
                continue
            members.append(stored)
            if len(members) == GROUP:
                yield from self._plain(members)
                members = []
            self._check()
        yield from self._plain(members)

    def _plain(self, members: list[Stored]) -> Iterator[Group]:
        yield from self._group(None, [stored.item for stored in members if not stored.done])

    def _group(self, parent: int | None, items: list[Item]) -> Iterator[Group]:
        if self._left is not None and len(items) > self._left:
            items, self.limit_reached = items[: self._left], True
        if items:
            self._number += 1
            if self._left is not None:
                self._left -= len(items)
            yield Group(self._number - 1, parent, tuple(items))
        if self.limit_reached:
            raise _Stopped

    def _container(self, stored: Stored) -> Iterator[Group]:
        container = stored.item
        if stored.done and not self._reader.lacks_products(stored.row, self._products):
            return
        self._number += 1
        yield Group(self._number - 1, stored.row, ())
        failure, sha256 = None, ""
        try:
            sha256 = file_sha256(container.path)
            if container.kind == "video":
                self._watcher.expect(expected_frames(container.path, self._request))
            yield from self._members(stored, replace(container, sha256=sha256))
        except BrokenContainer as error:
            failure = Failure("corrupt", str(error))
        except OSError as error:
            failure = failure_of(error, container.name)
        self._number += 1
        yield Group(self._number - 1, stored.row, (), closes=True, failure=failure, sha256=sha256)

    def _members(self, stored: Stored, item: Item) -> Iterator[Group]:
        size = FRAME_GROUP if item.kind == "video" else GROUP
        items: list[Item] = []
        place = 0
        opened = open_container(Container(item, self._child_products, self._max_bytes, self._request))
        broken: BrokenContainer | None = None
        while True:
            try:
                member = next(opened)
            except StopIteration:
                break
            except BrokenContainer as error:  # images before the damage are still labeled
                broken = error
                break
            self._check()
            if member is not None:
                items.append(member)
            place += 1
            if place % size == 0:
                yield from self._group(stored.row, items)
                items = []
        yield from self._group(stored.row, items)
        if broken is not None:
            raise broken

    def _child_products(self, name: str, frame: int) -> int | None:
        return self._reader.child_products(name, frame, self._products)

    # The workers

    def _work(self, worker: Worker) -> None:
        try:
            while (group := self._groups.get()) is not None:
                self._results.put((group, worker.label(group.items)))
        except Exception as error:  # noqa: BLE001  # handed to the committing thread, which raises it
            self._results.put(error)
        finally:
            self._results.put(None)

    # The thread that commits

    def _commit_all(self, workers: int) -> None:
        waiting: dict[int, tuple[Group, list[ImageRecord]]] = {}
        due, running = 0, workers
        while running:
            result = self._results.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                running -= 1
                continue
            waiting[result[0].number] = result
            while due in waiting:
                self._commit(*waiting.pop(due))
                due += 1

    def _commit(self, group: Group, records: list[ImageRecord]) -> None:
        with disk_errors(self._journal.out):
            if group.closes and group.parent is not None:
                self._journal.close_container(group.parent, group.failure, group.sha256)
            elif not group.items and group.parent is not None:
                self._journal.open_container(group.parent)
            else:
                self._journal.commit(group.parent, records)
        self._slots.release()
        for record in records:
            self.tally.images += 1
            self.tally.faces += len(record.faces)
            self._watcher.image(record)
