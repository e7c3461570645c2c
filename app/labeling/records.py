"""The two records of labeling: an input, and its result with its faces."""

from dataclasses import dataclass
from typing import Final, Literal

from mien.app.inference.records import Face
from mien.data.contract import Array

# folder: a folder that cannot be read; none: an entry that is never opened
Kind = Literal["file", "video", "folder", "none"]
Status = Literal["ok", "no_face", "error", "skipped"]

STILL: Final = -1  # frame number of still images


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason for an input without faces: a stable code, and a message."""

    reason: str
    message: str
    status: Status = "error"


@dataclass(frozen=True, slots=True)
class Input:
    """A photo, a frame of a video, or a video, which is opened when labeled.

    Attributes:
        name: unique name in all outputs, with forward slashes.
        path: path or URL of the file, as bytes.
        signature: size and time, to detect changes.
        failure: problem found before the image is read.
        row: key in the journal, and of its video as `parent`.
        frame: number from 0 in its video, otherwise `STILL`; time_s: seconds since the start of the video;
            scene: number of cuts before it.
        images: bit mask of the images to write; on_disk: of those that an earlier run has written or begun.
        pixels: a decoded frame; sha256: of its video.
    """

    name: str
    kind: Kind
    path: bytes
    size: int
    signature: str = ""
    failure: Failure | None = None
    row: int | None = None
    parent: int | None = None
    frame: int = STILL
    time_s: float | None = None
    scene: int = 0
    images: int = 0
    on_disk: int = 0
    sha256: str = ""
    pixels: Array | None = None

    @property
    def is_frame(self) -> bool:
        """Return whether it is a frame of a video."""
        return self.frame != STILL


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Result of one input; width and height of the upright image, pixels, and codes of `NOTES`."""

    input: Input
    status: Status
    reason: str | None = None
    error: str | None = None
    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    faces: tuple[Face, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def frame(self) -> int | None:
        """Number of a frame in its video; None for a still image."""
        return self.input.frame if self.input.is_frame else None
