"""Options of a run, passed to every part of it; `app/cli/label.py` has their flags and help."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Engine = Literal["local", "ray"]

DEFAULT_OUTPUTS: Final = ("csv", "annotated", "report")
# Limits for one image of a local collection: they admit large scans, but not decompression bombs.
MAX_BYTES: Final = 1_000_000_000
MAX_PIXELS: Final = 250_000_000
FRAMES_PER_S: Final = 2.0  # of a video, by default
SAMPLED: Final = f"Videos: {FRAMES_PER_S:g} frames per second are labeled. Add --every 1 to label all of them."
# Neither results nor outputs depend on them.
_NOT_RECORDED: Final = (
    "inputs", "out", "files_from", "null", "outputs", "dry_run", "add", "replace", "workers", "quiet", "engine",
    "ray_address",
)  # fmt: skip


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
    every: int | None = None
    per_second: float | None = None
    start: float = 0.0
    end: float | None = None
    whole: bool = False

    outputs: list[str] = field(default_factory=list)
    spreadsheet_safe: bool = False
    annotated_px: int = 1600

    limit: int | None = None
    dry_run: bool = False
    add: bool = False
    replace: bool = False
    workers: int = 0

    quiet: bool = False

    engine: Engine = "local"
    ray_address: str | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that results or outputs depend on, for the journal and `run.json`."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_RECORDED}

    @property
    def samples_by_default(self) -> bool:
        """Return whether videos are sampled although no option says so."""
        return self.every is None and self.per_second is None

    @property
    def frames_per_s(self) -> float | None:
        """Frames of a video to label per second; None with `every`."""
        return FRAMES_PER_S if self.samples_by_default else self.per_second

    @property
    def sampling(self) -> str:
        """Description of the video sampling."""
        frames = f"{self.frames_per_s:g} per second" if self.frames_per_s else f"every {self.every}"
        end = "" if self.end is None else f" to {self.end:g} s"
        part = f" from {self.start:g} s{end}" if self.start or end else ""
        return f"{frames}{part}"
