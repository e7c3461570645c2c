"""Videos as cameras, phones and editors make them, by FFmpeg."""

import subprocess
from pathlib import Path

import imageio_ffmpeg


def ffmpeg(*arguments: str | Path) -> None:
    """Run FFmpeg's program, which replaces existing files."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=60)


def with_index_first(path: Path) -> None:
    """Move the index of an MP4 to its start, so that a truncated file loses only frames."""
    moved = path.with_name(f"moved{path.suffix}")
    ffmpeg("-i", path, "-c", "copy", "-movflags", "+faststart", moved)
    moved.replace(path)
