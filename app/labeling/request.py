"""Options of a labeling run, passed as one object."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

Messages = Literal["bar", "json", "quiet"]
Symlinks = Literal["files", "follow", "skip"]
Engine = Literal["local", "ray"]

DEFAULT_OUTPUTS: Final = ("csv", "annotated", "report")
RAY_OUTPUTS: Final = ("parquet",)
# Limits for one image of a local collection: they admit large scans, but not decompression bombs.
MAX_BYTES: Final = 1_000_000_000
MAX_PIXELS: Final = 250_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `mien label`; see `mien label --help` for all options.

    Attributes:
        inputs: folders, files and patterns.
        files_from: alternatively, a file with paths, `-` for standard input.
        outputs: names of outputs; empty for the default of the engine.
        every, per_second: sampling of video frames; mutually exclusive.
        limit: number of images to label in this call, None for all.
        workers: number of threads, 0 for one per core.
        min_face_px, min_confidence: faces below are left out of all outputs, but kept in the journal.
    """

    out: Path
    inputs: tuple[str, ...] = ()
    files_from: str | None = None
    null: bool = False
    outputs: tuple[str, ...] = ()
    recursive: bool = True
    ignore: tuple[str, ...] = ()
    hidden: bool = False
    symlinks: Symlinks = "files"
    every: int = 1
    per_second: float | None = None
    limit: int | None = None
    dry_run: bool = False
    check_hashes: bool = False
    new_run: bool = False
    annotated_px: int = 1600
    min_face_px: float = 0.0
    min_confidence: float = 0.0
    workers: int = 0
    messages: Messages = "bar"
    engine: Engine = "local"
    ray_address: str | None = None
    partition_files: int | None = None

    @property
    def sampling(self) -> str:
        """Description of the video sampling; part of the signature of a video."""
        return f"{self.per_second:g} per second" if self.per_second else f"every {self.every}"

    @property
    def selection(self) -> str:
        """Description of the selection of members; part of the signature of an archive."""
        return f"{'hidden ' if self.hidden else ''}{' '.join(self.ignore)}"

    @property
    def drawing(self) -> str:
        """Description of the options for written images."""
        return f"{self.annotated_px} px, faces from {self.min_face_px:g} px and {self.min_confidence:g}"

    def with_default_outputs(self) -> "Request":
        """The same request, with the default outputs of its engine if none are given."""
        default = RAY_OUTPUTS if self.engine == "ray" else DEFAULT_OUTPUTS
        return replace(self, outputs=tuple(dict.fromkeys(self.outputs)) or default)
