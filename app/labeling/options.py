"""Options of a run, passed to every part of it; `app/cli/label_options.py` has their flags and help."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Engine = Literal["local", "ray"]
Symlinks = Literal["files", "follow", "skip"]

DEFAULT_OUTPUTS: Final = ("csv", "annotated", "report")
# Limits for one image of a local collection: they admit large scans, but not decompression bombs.
MAX_BYTES: Final = 1_000_000_000
MAX_PIXELS: Final = 250_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """One call of `mien label`."""

    inputs: list[str] = field(default_factory=list)
    out: Path = Path("out")

    files_from: str | None = None
    null: bool = False
    recursive: bool = True
    ignore: list[str] = field(default_factory=list)
    hidden: bool = False
    symlinks: Symlinks = "files"
    every: int = 1
    per_second: float | None = None
    scenes: bool = False
    start: float = 0.0
    end: float | None = None
    zip_encoding: str | None = None
    animations: bool = False

    aligned: bool = False
    whole: bool = False
    boxes: Path | None = None

    outputs: list[str] = field(default_factory=list)
    spreadsheet_safe: bool = False
    votes: bool = False
    annotated_px: int = 1600
    min_face_px: float = 0
    min_confidence: float = 0

    limit: int | None = None
    dry_run: bool = False
    check_hashes: bool = False
    new_run: bool = False
    workers: int = 0

    quiet: bool = False
    json_log: bool = False

    engine: Engine = "local"
    ray_address: str | None = None

    @property
    def sampling(self) -> str:
        """Description of the video sampling; part of the signature of a video."""
        frames = f"{self.per_second:g} per second" if self.per_second else f"every {self.every}"
        end = "" if self.end is None else f" to {self.end:g} s"
        part = f" from {self.start:g} s{end}" if self.start or end else ""
        return f"{'scenes' if self.scenes else frames}{part}"

    @property
    def selection(self) -> str:
        """Description of the selection of members; part of the signature of an archive."""
        encoding = f" names in {self.zip_encoding}" if self.zip_encoding else ""
        frames = " animations" if self.animations else ""
        return f"{'hidden ' if self.hidden else ''}{' '.join(self.ignore)}{encoding}{frames}"

    @property
    def drawing(self) -> str:
        """Description of the options for written images."""
        return f"{self.annotated_px} px, faces from {self.min_face_px:g} px and {self.min_confidence:g}"
