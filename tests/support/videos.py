"""MP4 as for streaming."""

import subprocess
from pathlib import Path

import imageio_ffmpeg


def with_index_first(path: Path) -> None:
    """Move the index of an MP4 to its start, so that a truncated file loses only frames."""
    moved = path.with_name(f"moved{path.suffix}")
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-i",
        path,
        "-c",
        "copy",
        "-movflags",
        "+faststart",
        moved,
    ]
    subprocess.run(command, check=True, timeout=60)
    moved.replace(path)
