"""Analyzer of photos with typed results.

An analyzer works in several threads, and in processes that are forked or started with a copy of it.
"""

import gc
import io
import os
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Self, SupportsIndex, overload

import numpy as np
import PIL.Image

from mien.app.errors import InvalidFace, InvalidRequest
from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler, detection_of
from mien.app.inference.records import FACES, Box, Face, Photo
from mien.app.settings import Device, InferenceSettings
from mien.data.contract import Array, EmptyImage, ImageTooLarge, decode
from mien.data.contract.pixels import upright_rgb
from mien.data.errors import MienError

Image = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Array | PIL.Image.Image
_Source = str | bytes | Array  # absolute path, bytes of a file, or pixels

_BATCH: Final = 16
_NOTEBOOK_PX: Final = 800  # long side of the picture that a notebook shows
_LISTED_ERRORS: Final = 5


class BatchError(MienError):
    """Images of a batch that cannot be used.

    Attributes:
        errors: by position in the batch.
        results: of all images; None for those with an error.
    """

    def __init__(self, errors: dict[int, Exception], results: "list[Faces | None]") -> None:
        texts = [f"images[{index}]: {error}" for index, error in islice(errors.items(), _LISTED_ERRORS)]
        texts += ["..."] * (len(errors) > _LISTED_ERRORS)
        super().__init__(f"{len(errors):,} of {len(results):,} images cannot be used: {'; '.join(texts)}")
        self.errors, self.results = errors, results


class Faces(list[Face]):
    """Faces of one photo, largest first; the list is empty if there are none. A slice of it is one, too.

    Attributes:
        width, height: size of the upright photo, pixels.
        model, detector: their names; no detector for whole faces.
        notes: codes of what may be missing or different, such as `max_faces`; see `mien.app.inference.records.NOTES`.
    """

    def __init__(self, photo: Photo, model: str, detector: str, source: _Source) -> None:
        """Take the faces of a photo; `source` is read again to draw on it."""
        super().__init__(photo.faces)
        self.width, self.height, self.notes = photo.width, photo.height, photo.notes
        self.model, self.detector, self._source = model, detector, source

    @overload
    def __getitem__(self, index: SupportsIndex) -> Face: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Face | Self:
        if not isinstance(index, slice):
            return super().__getitem__(index)
        chosen = copy(self)
        chosen[:] = super().__getitem__(index)
        return chosen

    def to_dict(self) -> dict[str, Any]:
        """The photo and its faces as plain values, for JSON: rounded, in the form of the REST API."""
        photo = {name: getattr(self, name) for name in ("width", "height", "model", "detector")}
        return photo | {"notes": list(self.notes), "faces": FACES.dump_python([*self], mode="json")}

    def draw(self) -> PIL.Image.Image:
        """The photo with a box, the label and the confidence of every face, as `mien label` draws them.

        The photo is read again: keep its file, and do not change the array that was analyzed.
        Raises: OSError, if the file cannot be read; MienError, if it is another image now.
        """
        from mien.app.inference.drawing import annotate

        source = Path(self._source).read_bytes() if isinstance(self._source, str) else self._source
        limit = self.width * self.height
        pixels = decode(source, max_pixels=limit, incomplete=True) if isinstance(source, bytes) else source
        if pixels.shape[:2] != (self.height, self.width):
            raise InvalidRequest(
                f"photo of {pixels.shape[1]}x{pixels.shape[0]} px: it had {self.width}x{self.height} px when it was "
                "analyzed. Analyze it again."
            )
        return PIL.Image.fromarray(annotate(pixels, Photo(self.width, self.height, faces=tuple(self))))

    def _repr_png_(self) -> bytes | None:
        """Show the annotated photo in a notebook, or the list if the file is gone or has another photo."""
        try:
            image = self.draw()
        except (OSError, MienError):
            return None
        image.thumbnail((_NOTEBOOK_PX, _NOTEBOOK_PX))
        image.save(buffer := io.BytesIO(), "PNG")
        return buffer.getvalue()


class Analyzer:
    """Finds faces in photos and labels their expressions; thread-safe.

    As a context manager, it is closed at the end of the block.
    """

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, device: Device | None = None, **settings: Any
    ) -> None:
        """Open, verify and warm up the detector and the model.

        Arguments take precedence over environment variables (`MIEN_*`).

        Args:
            model: fast (the default), the name of a released artifact, or the folder of one.
            device: of the model: auto (the default), cpu or cuda; auto may fall back to the CPU.
            settings: other fields of `InferenceSettings`, such as detector="builtin" or min_face_px=24.
        Raises: MienError, if a setting is wrong, a file is missing or damaged, or the device cannot run the model.
        """
        self._settings = InferenceSettings.load(model=model, device=device, **settings).absolute()
        self._closed = False
        self._opened: Labeler | None = Labeler.open(self._settings)

    def analyze(
        self,
        image: Image,
        *,
        whole: bool = False,
        boxes: Iterable[Box | Sequence[float] | Array] | None = None,
    ) -> Faces:
        """Label the faces of one photo.

        Args:
            image: a path; the bytes of an image file, or a binary file object; an image of Pillow; or pixels (H, W, 3)
                uint8 in RGB (OpenCV has BGR: pass `image[..., ::-1]`).
            whole: the image is one face of any size, brow to chin with a margin; nothing is detected. One of 112x112
                pixels, such as `face.crop_rgb`, is taken as it is.
            boxes: the faces instead of detected ones: (x, y, width, height), or five landmarks (5, 2), in pixels of the
                upright photo. The result has one face for each, in this order.
        Raises: OSError, for a path that cannot be read; MienError, for an image or a box that cannot be used;
            TypeError.
        """
        faces_at = None if boxes is None else [_box_or_face(index, box) for index, box in enumerate(boxes)]
        (faces,) = self._classify([self._prepare(image, whole=whole, boxes=faces_at)])
        return faces

    def analyze_batch(self, images: Iterable[Image], *, whole: bool = False) -> list[Faces]:
        """Label several photos, in order; the faces of up to 16 photos are classified together.

        Args: see `analyze`.
        Raises: BatchError at the end, which names the images that cannot be used and has the results of the others;
            TypeError, for a single image.
        """
        single = (str, os.PathLike, bytes, bytearray, memoryview, PIL.Image.Image)
        if isinstance(images, single) or hasattr(images, "read") or getattr(images, "ndim", 0) == 3:
            raise TypeError(f"{type(images).__name__}: expected several images. For one, call analyze().")
        remaining = iter(images)
        results, errors = list[Faces | None](), dict[int, Exception]()
        while batch := list(islice(remaining, _BATCH)):
            prepared = {}
            for index, image in enumerate(batch, len(results)):
                try:
                    prepared[index] = self._prepare(image, whole=whole)
                except (MienError, OSError, TypeError) as error:
                    errors[index] = error.with_traceback(None)  # A traceback would keep the image.
            labeled = dict(zip(prepared, self._classify(list(prepared.values())) if prepared else (), strict=True))
            results += [labeled.get(index) for index in range(len(results), len(results) + len(batch))]
        if errors:
            raise BatchError(errors, results)
        return [faces for faces in results if faces is not None]

    def _prepare(self, image: Image, **options: Any) -> tuple[Photo, str, _Source]:
        """The prepared photo, the name of its detector, and its source."""
        labeler, path = self._labeler(), os.fsdecode(image) if isinstance(image, str | os.PathLike) else None
        try:
            source = self._read(image)
            photo = labeler.prepare(source, **options)
        except MienError as error:
            where = "" if path is None else f"{path}: "
            too_large = isinstance(error, ImageTooLarge)
            hint = ". Analyzer(max_bytes=..., max_pixels=...) sets other limits." if too_large else ""
            error.args = (f"{where}{error}{hint}", *error.args[1:])
            raise
        detector = "none" if options["whole"] else labeler.detector.name
        return photo, detector, source if path is None else str(Path(path).absolute())

    def _classify(self, photos: Sequence[tuple[Photo, str, _Source]]) -> list[Faces]:
        labeler = self._labeler()
        labeled = labeler.classify([photo for photo, _, _ in photos])
        model = labeler.classifier.manifest.name
        return [
            Faces(photo, model, detector, source) for photo, (_, detector, source) in zip(labeled, photos, strict=True)
        ]

    def close(self) -> None:
        """Release the memory of the detector and the model; the analyzer cannot be used afterwards."""
        self._opened, self._closed = None, True
        gc.collect()  # Sessions are in reference cycles.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _labeler(self) -> Labeler:
        if self._closed:
            raise InvalidRequest("this Analyzer is closed. Create another one, or use it inside its `with` block.")
        self._opened = self._opened or Labeler.open(self._settings)
        return self._opened

    def _read(self, image: object) -> bytes | Array:
        """Bytes of an image file, or pixels (H, W, 3) uint8 RGB."""
        if isinstance(image, np.ndarray | PIL.Image.Image):
            return _pixels_of(image, max_pixels=self._settings.max_pixels)
        limit = self._settings.max_bytes
        payload = bytes(image) if isinstance(image, bytes | bytearray | memoryview) else _read_file(image, limit + 1)
        if not payload:
            raise EmptyImage("no bytes. If the file was read before, call file.seek(0).")
        if len(payload) > limit:
            raise ImageTooLarge(f"more than {limit:,} bytes")
        return payload

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: a process that receives an analyzer opens its own sessions."""
        return {"_settings": self._settings, "_closed": self._closed, "_opened": None}


def _box_or_face(index: int, values: Box | Sequence[float] | Array) -> Box | Detection:
    """A face from its box or its landmarks. Raises: InvalidFace."""
    if isinstance(values, Box):
        return values
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.shape == (4,):
        return Box(*numbers.tolist())
    if numbers.shape == (5, 2):
        return detection_of(numbers)
    raise InvalidFace(f"boxes[{index}]: {values!r}: expected (x, y, width, height), or five landmarks", (index,))


def _pixels_of(image: Array | PIL.Image.Image, *, max_pixels: int) -> Array:
    """Upright pixels (H, W, 3) uint8 RGB. Raises: InvalidRequest; ImageTooLarge, for an image of Pillow."""
    if isinstance(image, PIL.Image.Image):
        if getattr(image, "tile", None) and getattr(image, "fp", None) is None:
            raise InvalidRequest("image of Pillow: its file is closed, and its pixels are not loaded. Load it first.")
        return upright_rgb(image, max_pixels=max_pixels)
    if image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size:
        return np.ascontiguousarray(image)
    raise InvalidRequest(
        f"pixels {image.shape} {image.dtype}: expected (H, W, 3) uint8 in RGB. Gray pixels become that with "
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
    payload = "" if isinstance(file, io.TextIOBase) else file.read(size)  # A text file would decode the image.
    if not isinstance(payload, bytes):
        raise TypeError(
            f"{type(file).__name__}.read() returned {type(payload).__name__}, expected bytes: open the file in binary "
            "mode; of an upload in FastAPI, pass `upload.file`"
        )
    while len(payload) < size and (more := file.read(size - len(payload))):  # A pipe returns what has arrived.
        payload += more
    return payload
