"""Labeling of photos and videos in this process, in one process per core, or on the machines of a Ray cluster.

Each of them calls `label_batch`; the caller owns the inputs, the journal and the outputs. Copies and crops are written
where they are made. A process opens its models once; a worker that dies costs a repeat of what it labeled.
"""

import contextlib
import hashlib
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Protocol

import cv2
from PIL import Image

from mien.app import VERSION
from mien.app.cpu_count import cores, free_bytes
from mien.app.errors import LabelingError
from mien.app.inference.classifier import CPU
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.labeler import Labeler, timed
from mien.app.inference.records import Photo
from mien.app.inference.tracker import Tracker, TrackingRules
from mien.app.labeling.copies import (
    ANNOTATED,
    CROPS,
    REPORT,
    annotated_name,
    crop_path,
    disk_errors,
    encode_jpeg,
    encode_png,
    parts_dir,
    remove_crops,
    thumbnail,
)
from mien.app.labeling.inputs import (
    MAX_BYTES,
    MAX_PIXELS,
    Failure,
    Item,
    failure_of,
    file_sha256,
    local_file,
    read_file,
)
from mien.app.labeling.journal import Result
from mien.app.labeling.options import LabelOptions
from mien.app.settings import InferenceSettings
from mien.app.video.reader import Sample, batches_ahead, samples
from mien.data.atomic import write_atomic
from mien.data.contract import Array, contract_id
from mien.data.contract.pixels import icc_profile

Image.MAX_IMAGE_PIXELS = None  # Our `max_pixels` replaces Pillow's own limit.
BATCH: Final = 16
_FRAMES: Final = 4  # Decoded frames stay in memory until they are labeled.
_RULES: Final = TrackingRules(confirmed_s=0)  # Every face of a frame has its row.
# With sparse sampling, a person may be missed in this many frames.
_MISSED_FRAMES: Final = 2.5
# What a process is worth starting for: it takes about as long to open its models as to label so many photos.
_PER_PROCESS: Final = 200
_PROCESS_BYTES: Final = 300_000_000
_ATTEMPTS: Final = 3  # So many processes may die at one photo.
_POLL_S: Final = 0.2
_AHEAD: Final = 2  # Of the tasks of a process, one waits.

Task = Sequence[Item]  # A task is photos, or one video.
Results = Generator[list[Result], None, None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process needs to label.

    Attributes:
        settings: of the models.
        pictures: outputs that need pictures.
        threads: number of those that label one video.
    """

    settings: InferenceSettings
    options: LabelOptions
    pictures: frozenset[str] = frozenset()
    threads: int = 1


class Executor(Protocol):
    """Labels the tasks of a run."""

    workers: int

    def run(self, tasks: Iterable[Task], pictures: frozenset[str]) -> Results:
        """Results as they are ready; a task is taken from the iterator when a worker will soon be free."""
        ...


# One batch


@lru_cache(maxsize=1)
def open_labeler(settings: InferenceSettings) -> Labeler:
    """The models of this process, with one thread per inference: workers use all cores."""
    cv2.setNumThreads(1)
    return Labeler.open(settings.model_copy(update={"threads": 1}))


def label_batch(setup: Setup, task: Task) -> Generator[Result, None, None]:
    """Label photos, whose faces are classified together, or one video; what fails becomes a result with a reason.

    Yields: results of the photos; of a video, those of its frames, and last its own.
    Raises: LabelingError, if no photo can be classified, or pictures cannot be written.
    """
    if task[0].is_video:
        yield from _label_video(setup, task[0])
        return
    prepared = [_prepare(setup, Result(item.name, item.path), None) for item in task]
    for result, photo in _classified(setup, prepared):
        yield result if photo is None else _finished(setup, result, photo)


Prepared = tuple[Result, Photo | None]  # None of an image that failed, whose result says why


def _prepare(setup: Setup, result: Result, sample: Sample | None) -> Prepared:
    """Read a photo, or take the pixels of a frame, and find the faces; pixels are kept in the size of their copy."""
    labeler, options = open_labeler(setup.settings), setup.options
    payload, timings_ms, profile = None, dict[str, float](), b""
    try:
        if sample is None:
            with timed(timings_ms, "read"):
                payload = read_file(result.path, labeler.settings.max_bytes)
            result = replace(result, sha256=hashlib.sha256(payload).hexdigest())
            source: bytes | Array = payload
        elif isinstance(sample.pixels, Exception):
            raise sample.pixels
        else:
            source = sample.pixels
        photo = labeler.prepare(source, whole=options.whole, keep_pixels=ANNOTATED in setup.pictures)
        if photo.pixels is not None:
            profile = b"" if payload is None else icc_profile(payload)
            photo = replace(photo, pixels=reduced(photo.pixels, options.annotated_px), icc_profile=profile)
        return result, replace(photo, timings_ms=timings_ms | photo.timings_ms)
    except Exception as error:  # noqa: BLE001  # One poisoned photo must not end a run of a million others.
        return result.failed(failure_of(error, result.name, payload)), None


def _classified(setup: Setup, prepared: Sequence[Prepared]) -> list[Prepared]:
    """Classify all faces at once, or photo by photo if this fails, as when memory is short.

    Raises: LabelingError, if it fails for every one of several photos.
    """
    photos = [photo for _, photo in prepared if photo is not None]
    try:
        labeled = iter(open_labeler(setup.settings).classify(photos))
        return [(result, None if photo is None else next(labeled)) for result, photo in prepared]
    except Exception as error:  # Photos may be poisoned, as in `_prepare`.
        if len(prepared) == 1:
            return [(result.failed(failure_of(error, result.name)), None) for result, _ in prepared]
        alone = [one if one[1] is None else _classified(setup, [one])[0] for one in prepared]
        failed = len(photos) - sum(photo is not None for _, photo in alone)
        if 1 < failed == sum(len(photo.detections) > 0 for photo in photos):
            raise LabelingError(f"the model cannot run: {error}. Rerun the same command to resume.") from error
        return alone


def _finished(setup: Setup, result: Result, photo: Photo) -> Result:
    """Write the pictures of a photo; its result, or the error of a stage that failed. Raises: LabelingError.

    Pictures are not synced to the disk individually, because this would take longer than labeling.
    """
    out, name, frame, timings_ms = setup.options.out, result.name, result.frame, dict(photo.timings_ms)
    try:
        with timed(timings_ms, "write"), disk_errors(out):
            if photo.pixels is not None and ANNOTATED in setup.pictures:
                copy = encode_jpeg(annotate(photo.pixels, photo), icc_profile=photo.icc_profile)
                write_atomic(out / ANNOTATED / annotated_name(name, frame), copy, staging=parts_dir(out), durable=False)
            for face in photo.faces if CROPS in setup.pictures else ():
                png = encode_png(photo.crops[face.index])
                write_atomic(out / crop_path(name, frame, face.index), png, staging=parts_dir(out), durable=False)
            if CROPS in setup.pictures:
                remove_crops(out, name, frame, first=len(photo.faces))
        thumbs = [thumbnail(crop) if REPORT in setup.pictures else b"" for crop in photo.crops]
        faces = tuple(
            replace(face, thumb=thumb, crop_rgb=None) for face, thumb in zip(photo.faces, thumbs, strict=True)
        )
    except LabelingError:  # The disk is full, or the folder is gone.
        raise
    except Exception as error:  # noqa: BLE001  # Some photos are too large for a JPEG.
        return result.failed(failure_of(error, name))
    result = replace(result, status="ok" if faces else "no_face", width=photo.width, height=photo.height)
    return replace(result, faces=faces, notes=photo.notes, timings_ms=timings_ms)


def _label_video(setup: Setup, item: Item) -> Iterator[Result]:
    """Label the frames of a video, decoded by a thread beside this one; people keep their numbers."""
    options, video, last_s, scene = setup.options, Result(item.name, item.path), 0.0, 0
    part: dict[str, Any] = {"start_s": options.start, "end_s": options.end}
    tracker = Tracker(open_labeler(setup.settings).threshold(), _RULES)
    try:
        with local_file(item.path) as path, ThreadPoolExecutor(setup.threads, thread_name_prefix="frame") as pool:
            video = replace(video, sha256=file_sha256(path))
            decoded = samples(path, per_second=options.frames_per_s, every=options.every or 1, **part)
            for batch in batches_ahead(decoded, _FRAMES):
                frames = [
                    replace(video, frame=frame.number, time_s=frame.time_s, until_s=frame.until_s, scene=frame.scene)
                    for frame in batch
                ]
                prepared = list(pool.map(lambda frame, sample: _prepare(setup, frame, sample), frames, batch))
                for frame, photo in _classified(setup, prepared):
                    if photo is None:
                        yield frame
                        continue
                    time_s = frame.time_s or 0.0
                    gap_s = max(_RULES.lost_s, _MISSED_FRAMES * (time_s - last_s))
                    tracker.rules = replace(_RULES, lost_s=gap_s, slow_s=gap_s)
                    tracked = tracker.update(photo.faces, time_s, cut=frame.scene != scene)
                    people = {face.index: face.person for face in tracked}
                    faces = tuple(replace(face, person=people[face.index]) for face in photo.faces)
                    yield _finished(setup, frame, replace(photo, faces=faces))
                    last_s, scene = time_s, frame.scene
        yield video
    except LabelingError:
        raise
    except Exception as error:  # noqa: BLE001  # Videos may be poisoned, as photos in `_prepare`.
        yield video.failed(failure_of(error, item.name))


# This machine


class Threads:
    """Threads of this process over one pipeline, for few photos, one video, or a GPU."""

    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup, self.workers = replace(setup, threads=workers), workers

    def run(self, tasks: Iterable[Task], pictures: frozenset[str]) -> Results:
        """Label tasks in order."""
        setup = replace(self._setup, pictures=pictures)
        pending = deque[Future[list[Result]]]()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="label")
        try:
            for task in tasks:
                is_video = task[0].is_video
                if not is_video:
                    pending.append(pool.submit(list, label_batch(setup, task)))
                while len(pending) > (0 if is_video else self.workers + 2):
                    yield pending.popleft().result()
                if is_video:
                    with contextlib.closing(label_batch(setup, task)) as labeled:
                        while part := list(islice(labeled, _FRAMES)):
                            yield part
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Processes in which Ctrl-C is blocked from their first instruction on, because the parent ends them."""

    def submit(self, /, *arguments: Any, **options: Any) -> Future[Any]:
        if sys.platform == "win32":
            return super().submit(*arguments, **options)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(*arguments, **options)  # starts processes, which inherit the mask
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Processes:
    """One process per core, each with its own models.

    If a process dies, what all of them were labeling is labeled again, photo by photo, by one process; a photo or a
    video at which three processes died is an error.
    """

    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup, self.workers = setup, workers
        self._ready: Future[object] | None = None

    def run(self, tasks: Iterable[Task], pictures: frozenset[str]) -> Results:
        """Label tasks; their results come as they are ready, and [] from time to time, for signals."""
        self._setup, tasks = replace(self._setup, pictures=pictures), iter(tasks)
        pending, others = dict[Future[list[Result]], Task](), multiprocessing.active_children()
        try:
            pool = self._open(self.workers)
            while True:
                for task in islice(tasks, _AHEAD * self.workers - len(pending)):
                    pending[pool.submit(label_all, self._setup, task)] = task
                if not pending:
                    return
                done = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED).done
                yield []
                try:
                    for future in done:
                        yield future.result()
                        del pending[future]
                except BrokenProcessPool:
                    lost = [item for task in pending.values() for item in task]
                    pending.clear()
                    yield from self._one_by_one(lost)
                    pool = self._open(self.workers)
        finally:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
                    process.join()

    def _open(self, workers: int) -> ProcessPoolExecutor:
        """New processes. Raises: LabelingError, if the last did not start."""
        if self._ready is not None and (not self._ready.done() or self._ready.exception() is not None):
            raise LabelingError(
                "a worker process ended while it started. A script that labels needs "
                '`if __name__ == "__main__":`. --workers 1 labels without processes.'
            )
        pool = _Pool(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
        self._ready = pool.submit(is_ready, self._setup)
        return pool

    def _one_by_one(self, items: Sequence[Item]) -> Results:
        pool = self._open(1)
        for item in items:
            deaths = 1
            while deaths < _ATTEMPTS:
                try:
                    yield pool.submit(label_all, self._setup, [item]).result()
                    break
                except BrokenProcessPool:
                    deaths, pool = deaths + 1, self._open(1)
            else:
                failure = Failure("failed", f"{_ATTEMPTS} worker processes died while they labeled it")
                yield [Result(item.name, item.path).failed(failure)]


def _start_worker() -> None:
    """Ignore Ctrl-C on Windows, too, where it cannot be blocked, and end with a parent that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def is_ready(setup: Setup) -> bool:
    """Open the models of a process."""
    return open_labeler(setup.settings) is not None


def label_all(setup: Setup, task: Task) -> list[Result]:
    """Label a task in another process."""
    return list(label_batch(setup, task))


def local_executor(setup: Setup, facts: dict[str, str], videos: int, photos: int) -> Threads | Processes:
    """Processes for many photos or several videos; threads of this process for few, and on a GPU."""
    workers = setup.options.workers or min(cores(), max(1, free_bytes() // _PROCESS_BYTES))
    useful = min(workers, videos + math.ceil(photos / _PER_PROCESS))
    if useful <= 1 or facts["provider"] != CPU:
        return Threads(setup, workers)
    return Processes(setup, useful)


# Facts of the models


def with_limits(settings: InferenceSettings) -> InferenceSettings:
    """Settings with raised limits: the default ones are for untrusted uploads. Limits that are set are kept."""
    raised = {"max_bytes": MAX_BYTES, "max_pixels": MAX_PIXELS, "detection_tiles": "wide"}
    limits = {name: value for name, value in raised.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=limits)


def facts_of(labeler: Labeler, options: LabelOptions) -> dict[str, str]:
    """Everything except the photo that results and copies depend on; if one changes, a run cannot be resumed."""
    settings, manifest, classifier = labeler.settings, labeler.classifier.manifest, labeler.classifier
    return {
        "version": VERSION,
        "model": manifest.name,
        "manifest": hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:16],
        "prior": classifier.prior,
        "labels": " ".join(manifest.labels),
        "precision": classifier.precision,
        "provider": classifier.provider,
        "contract": contract_id(),
        "detector": "none" if options.whole else labeler.detector.name,
        "sampling": options.sampling,
        "annotated_px": str(options.annotated_px),
        "detector_file": getattr(labeler.detector, "sha256", "")[:16],
        "detection": f"{settings.detection_threshold:g} {settings.detect_rotated} {settings.min_face_px:g} "
        f"{settings.max_faces} {settings.detection_tiles}",
    }
