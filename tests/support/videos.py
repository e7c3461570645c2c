"""Videos as cameras, phones and editors make them, by FFmpeg."""

import subprocess
from pathlib import Path

import imageio_ffmpeg


def ffmpeg(*arguments: str | Path) -> None:
    """Run FFmpeg's program, which replaces existing files."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=60)
