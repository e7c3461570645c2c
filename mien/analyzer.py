"""Analyzer of photos with typed results.

An analyzer works in several threads, and in processes that are forked or started with a copy of it. The threads of ONNX
Runtime do not survive a fork: a forked process opens its own sessions when it first needs them.
"""

import ctypes
import io
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from mien.app.errors import InvalidRequest, PayloadTooLarge, ProviderUnavailable
from mien.app.inference.classifier import with_precision
from mien.app.inference.detect import Box
from mien.app.inference.pipeline import Analysis, LabeledFace, Pipeline, build_pipeline, with_absolute_paths
from mien.app.inference.runtime.sessions import CPU
from mien.app.settings import Device, load_settings
from mien.data.contract import LANDMARKS, Array, DecodeError, ImageTooLarge, by_label, decode
from mien.data.contract.decode import upright_rgb
from mien.data.errors import MienError

Image = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Array | PIL.Image.Image

_NOTEBOOK_PX: Final = 800  # long side of the picture that a notebook shows


@dataclass(frozen=True, slots=True)
class Face:
    """One face.

    Attributes:
        box: in pixels of the upright photo.
        landmarks: (x, y) in pixels of the photo, by name; left and right as seen in the photo.
        label: the most probable expression.
        confidence: the calibrated probability of the label.
        uncertain: whether the confidence is below the model's threshold.
        reasons: why the label may be wrong: some of `small`, `blurred`, `turned`, `dark`, `covered`, and `ambiguous`
            (less than twice as probable as the next one); empty if none applies.
        probabilities: of all expressions of the model, by label; they sum to 1.
        detection_score: confidence of the detector, 0 to 1; not comparable between detectors.
        crop: (112, 112, 3) uint8 RGB, the aligned face as the model saw it; not compared by `==`.
    """

    box: Box
    landmarks: dict[str, tuple[float, float]]
    label: str
    confidence: float
    uncertain: bool
    reasons: tuple[str, ...]
    probabilities: dict[str, float]
    detection_score: float
    crop: NDArray[np.uint8] = field(compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the crop as plain dictionaries and numbers, for JSON."""
        values = asdict(self) | {"box": self.box._asdict()}
        del values["crop"]
        return values


class Faces(list[Face]):
    """Faces of one photo, largest first; the list is empty if there are none.

    Attributes:
        width, height: size of the upright photo, pixels.
        model, detector: their names.
    """

    def __init__(self, analysis: Analysis, pipeline: Pipeline, photo: str | bytes | Array) -> None:
        """Take the faces of an analysis by a pipeline.

        Args:
            photo: its path, the bytes of its file, or its pixels (H, W, 3) uint8 RGB; read again to draw on it.
        """
        super().__init__(_face(face) for face in analysis.faces)
        self.width, self.height = analysis.width, analysis.height
        self.model, self.detector = pipeline.classifier.manifest.name, pipeline.detector.name
        self._analysis, self._photo = analysis, photo

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

        photo = Path(self._photo).read_bytes() if isinstance(self._photo, str) else self._photo
        pixels = decode(photo, max_pixels=self.width * self.height) if isinstance(photo, bytes) else photo
        if pixels.shape[:2] != (self.height, self.width):
            raise InvalidRequest(
                f"photo of {pixels.shape[1]}x{pixels.shape[0]} px: it had {self.width}x{self.height} px when it was "
                "analyzed. Analyze it again."
            )
        return annotate(pixels if long_side_px is None else reduced(pixels, long_side_px), self._analysis)


class Analyzer:
    """Finds faces in photos and labels their expressions; thread-safe."""

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, device: Device | None = None, **settings: Any
    ) -> None:
        """Open, verify and warm up the detector and the model.

        Arguments take precedence over environment variables (`MIEN_*`).

        Args:
            model: fast (the default), accurate, the name of a released artifact, or the folder of one.
            device: auto (the default), cpu, cuda or tensorrt; auto may fall back to the CPU.
            settings: other fields of `mien.app.settings.Settings`, such as detector="builtin" or min_face_px=24.
        Raises: MienError, if a setting is wrong, a file is missing or damaged, or the device cannot run the model.
        """
        self._settings = with_absolute_paths(load_settings(model=model, device=device, **settings))
        self._on_gpu = False
        self._opened: Pipeline | None = None
        self._pipeline()

    def analyze(self, image: Image) -> Faces:
        """Label the faces of one photo.

        Args:
            image: a path; the bytes of an image file, or a binary file object; an image of Pillow; or pixels (H, W, 3)
                uint8 in RGB (OpenCV has BGR: pass `image[..., ::-1]`).
        Raises: OSError, for a path that cannot be read; MienError, for an image that cannot be used; TypeError.
        """
        pipeline = self._pipeline()
        path = os.fsdecode(image) if isinstance(image, str | os.PathLike) else None
        try:
            photo = self._read(image)
            analysis = pipeline.analyze(photo) if isinstance(photo, bytes) else pipeline.analyze_pixels(photo)
        except MienError as error:
            name = "" if path is None else f"{path}: "
            hint = ". Analyzer(max_pixels=...) sets another limit." if isinstance(error, ImageTooLarge) else ""
            raise type(error)(f"{name}{error}{hint}") from error
        return Faces(analysis, pipeline, photo if path is None else str(Path(path).absolute()))

    def analyze_batch(self, images: Iterable[Image]) -> list[Faces]:
        """Label several photos, in order. Raises: see `analyze`, at the first image that cannot be used."""
        single = (str, os.PathLike, bytes, bytearray, memoryview, PIL.Image.Image)
        if isinstance(images, single) or hasattr(images, "read") or getattr(images, "ndim", 0) == 3:
            raise TypeError(f"{type(images).__name__}: expected several images. For one, call analyze().")
        return [self.analyze(image) for image in images]

    def _pipeline(self) -> Pipeline:
        if self._opened is None:
            with _opening:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    def _open(self) -> Pipeline:
        if self._on_gpu:
            raise ProviderUnavailable(
                "this process was forked from one that uses the GPU, and CUDA does not work after a fork. Create the "
                "Analyzer in each process, or start processes with the method `spawn`."
            )
        pipeline = build_pipeline(self._settings)
        classifier = pipeline.classifier
        # a later opening of this analyzer neither measures again nor chooses differently
        self._settings = with_precision(self._settings, classifier.precision, classifier.provider)
        self._on_gpu = {classifier.provider, getattr(pipeline.detector, "provider", CPU)} != {CPU}
        _analyzers.add(self)
        return pipeline

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


def _face(face: LabeledFace) -> Face:
    points = ((float(x), float(y)) for x, y in face.landmarks_px)
    return Face(
        box=Box(*(float(value) for value in face.box_px)),
        landmarks=dict(zip(LANDMARKS, points, strict=True)),
        label=face.label,
        confidence=face.confidence,
        uncertain=face.uncertain,
        reasons=face.reasons,
        probabilities=by_label(face.probabilities),
        detection_score=float(face.score),
        crop=face.crop,
    )


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
