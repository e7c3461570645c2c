"""Analyzer of photos with typed results.

An analyzer works in several threads, and in processes that are forked or started with a copy of it. The threads of ONNX
Runtime do not survive a fork: a forked process opens its own sessions when it first needs them.
"""

import ctypes
import io
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import PIL.Image

from mien.app.errors import InvalidRequest, PayloadTooLarge, ProviderUnavailable
from mien.app.inference.classifier import with_precision
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Face, Photo
from mien.app.inference.runtime.sessions import CPU
from mien.app.settings import Device, InferenceSettings
from mien.data.contract import Array, DecodeError, ImageTooLarge, decode
from mien.data.contract.decode import upright_rgb
from mien.data.errors import MienError

Image = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Array | PIL.Image.Image

_BATCH: Final = 16
_NOTEBOOK_PX: Final = 800  # long side of the picture that a notebook shows


class Faces(list[Face]):
    """Faces of one photo, largest first; the list is empty if there are none.

    Attributes:
        width, height: size of the upright photo, pixels.
        model, detector: their names.
    """

    def __init__(self, photo: Photo, labeler: Labeler, source: str | bytes | Array) -> None:
        """Take the faces of a photo.

        Args:
            source: its path, the bytes of its file, or its pixels (H, W, 3) uint8 RGB; read again to draw on it.
        """
        super().__init__(photo.faces)
        self.width, self.height = photo.width, photo.height
        self.model, self.detector = labeler.classifier.manifest.name, labeler.detector.name
        self._photo, self._source = photo, source

    def draw(self) -> PIL.Image.Image:
        """The photo with a box, the label and the confidence of every face, as `mien label` draws them.

        The photo is read again: keep its file, and do not change the array that was analyzed.
        Raises: OSError, if the file cannot be read; MienError, if it is another image now.
        """
        return PIL.Image.fromarray(self._annotated(None))

    def _repr_png_(self) -> bytes | None:
        """Show the annotated photo in a notebook, or the list if the file is gone or has another photo."""
        try:
            pixels = self._annotated(_NOTEBOOK_PX)
        except (OSError, MienError):
            return None
        buffer = io.BytesIO()
        PIL.Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    def _annotated(self, long_side_px: int | None) -> Array:
        from mien.app.inference.drawing import annotate, reduced

        source = Path(self._source).read_bytes() if isinstance(self._source, str) else self._source
        pixels = decode(source, max_pixels=self.width * self.height) if isinstance(source, bytes) else source
        if pixels.shape[:2] != (self.height, self.width):
            raise InvalidRequest(
                f"photo of {pixels.shape[1]}x{pixels.shape[0]} px: it had {self.width}x{self.height} px when it was "
                "analyzed. Analyze it again."
            )
        return annotate(pixels if long_side_px is None else reduced(pixels, long_side_px), self._photo)


class Analyzer:
    """Finds faces in photos and labels their expressions; thread-safe."""

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, device: Device | None = None, **settings: Any
    ) -> None:
        """Open, verify and warm up the detector and the model.

        Arguments take precedence over environment variables (`MIEN_*`).

        Args:
            model: fast (the default), accurate, the name of a released artifact, or the folder of one.
            device: auto (the default), cpu or cuda; auto may fall back to the CPU.
            settings: other fields of `InferenceSettings`, such as detector="builtin" or min_face_px=24.
        Raises: MienError, if a setting is wrong, a file is missing or damaged, or the device cannot run the model.
        """
        self._settings = InferenceSettings.load(model=model, device=device, **settings).absolute()
        self._on_gpu = False
        self._opened: Labeler | None = None
        self._labeler()

    def analyze(self, image: Image) -> Faces:
        """Label the faces of one photo.

        Args:
            image: a path; the bytes of an image file, or a binary file object; an image of Pillow; or pixels (H, W, 3)
                uint8 in RGB (OpenCV has BGR: pass `image[..., ::-1]`).
        Raises: OSError, for a path that cannot be read; MienError, for an image that cannot be used; TypeError.
        """
        return self._analyze([image])[0]

    def analyze_batch(self, images: Iterable[Image]) -> list[Faces]:
        """Label several photos, in order; the faces of up to 16 photos are classified together.

        Raises: see `analyze`, at the first image that cannot be used.
        """
        single = (str, os.PathLike, bytes, bytearray, memoryview, PIL.Image.Image)
        if isinstance(images, single) or hasattr(images, "read") or getattr(images, "ndim", 0) == 3:
            raise TypeError(f"{type(images).__name__}: expected several images. For one, call analyze().")
        remaining, results = iter(images), list[Faces]()
        while batch := list(islice(remaining, _BATCH)):
            results += self._analyze(batch)
        return results

    def _analyze(self, images: Sequence[Image]) -> list[Faces]:
        labeler = self._labeler()
        sources, prepared = [], []
        for image in images:
            path = os.fsdecode(image) if isinstance(image, str | os.PathLike) else None
            try:
                source = self._read(image)
                prepared.append(labeler.prepare(source))
            except MienError as error:
                name = "" if path is None else f"{path}: "
                hint = ". Analyzer(max_pixels=...) sets another limit." if isinstance(error, ImageTooLarge) else ""
                raise type(error)(f"{name}{error}{hint}") from error
            sources.append(source if path is None else str(Path(path).absolute()))
        photos = labeler.classify(prepared)
        return [Faces(photo, labeler, source) for photo, source in zip(photos, sources, strict=True)]

    def _labeler(self) -> Labeler:
        if self._opened is None:
            with _opening:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    def _open(self) -> Labeler:
        if self._on_gpu:
            raise ProviderUnavailable(
                "this process was forked from one that uses the GPU, and CUDA does not work after a fork. Create the "
                "Analyzer in each process, or start processes with the method `spawn`."
            )
        labeler = Labeler.open(self._settings)
        classifier = labeler.classifier
        # a later opening of this analyzer neither measures again nor chooses differently
        self._settings = with_precision(self._settings, classifier.precision, classifier.provider)
        self._on_gpu = {classifier.provider, getattr(labeler.detector, "provider", CPU)} != {CPU}
        _analyzers.add(self)
        return labeler

    def _read(self, image: object) -> bytes | Array:
        """Bytes of an image file, or pixels (H, W, 3) uint8 RGB."""
        if isinstance(image, np.ndarray):
            return _checked(image)
        if isinstance(image, PIL.Image.Image):
            if getattr(image, "tile", None) and getattr(image, "fp", None) is None:
                raise InvalidRequest(
                    "image of Pillow: its file is closed, and its pixels are not loaded. Load it first."
                )
            return upright_rgb(image, max_pixels=self._settings.max_pixels)
        limit = self._settings.max_bytes
        payload = bytes(image) if isinstance(image, bytes | bytearray | memoryview) else _read_file(image, limit + 1)
        if not payload:
            raise DecodeError("no bytes. If the file was read before, call file.seek(0).")
        if len(payload) > limit:
            raise PayloadTooLarge(f"more than {limit:,} bytes. Analyzer(max_bytes=...) sets another limit.")
        return payload

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: a process that receives an analyzer opens its own sessions."""
        return {"_settings": self._settings, "_on_gpu": False, "_opened": None}


def _checked(pixels: Array) -> Array:
    if pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8 and pixels.size:
        return np.ascontiguousarray(pixels)
    raise InvalidRequest(
        f"pixels {pixels.shape} {pixels.dtype}: expected (H, W, 3) uint8 in RGB. Gray pixels become that with "
        "np.dstack([pixels] * 3), those with an alpha channel with pixels[..., :3], channels in front with "
        "pixels.transpose(1, 2, 0), floats in 0 to 1 with (pixels * 255).astype(np.uint8). For several photos, call "
        "analyze_batch()."
    )


def _read_file(file: object, size: int) -> bytes:
    """The first `size` bytes of a path or a binary file object."""
    if isinstance(file, str | os.PathLike):
        if str(file).startswith(("http://", "https://")):
            raise InvalidRequest("URLs are not read. Download the image, and pass its bytes.")
        with open(file, "rb") as opened:  # noqa: PTH123  # Path("") would be the current folder
            return opened.read(size)
    if not hasattr(file, "read"):
        hint = " (cv2.imread returns None if it cannot read a file)" if file is None else ""
        raise TypeError(
            f"{type(file).__name__}{hint}: expected a path, bytes, a binary file, an image of Pillow, or an array"
        )
    payload = "" if isinstance(file, io.TextIOBase) else file.read(size)  # which would decode the image
    if not isinstance(payload, bytes):
        raise TypeError(
            f"{type(file).__name__}.read() returned {type(payload).__name__}, expected bytes: open the file in binary "
            "mode; of an upload in FastAPI, pass `upload.file`"
        )
    while len(payload) < size and (more := file.read(size - len(payload))):  # a pipe returns what has arrived
        payload += more
    return payload


# Held while an analyzer opens its sessions; a fork waits for that.
_opening: Final = threading.RLock()
_analyzers: Final = weakref.WeakSet[Analyzer]()


def _leave_to_parent() -> None:
    """In a forked process, give up the sessions of its parent.

    Their destructor would wait for threads that do not exist here, at the latest when the process ends: they are kept.
    """
    for analyzer in _analyzers:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(analyzer._opened))
        analyzer._opened = None
    _opening.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_leave_to_parent)
