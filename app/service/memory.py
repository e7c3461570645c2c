"""Allocation of large buffers, so that the memory of images returns to the system."""

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
# Above the tensors of detection: to map and unmap these for each image took 20 % more processor time with 1 MB, and 6 %
# with 16 MB.
_MAPPED_BYTES: Final = 32 * 2**20


def return_large_buffers() -> None:
    """Let glibc map each buffer of 32 MB or more by itself, so that freeing it returns it to the system.

    On 64-bit systems this is the highest threshold that glibc adapts to by itself, set from the start (man 3 mallopt).
    Other C libraries have no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MAPPED_BYTES)
