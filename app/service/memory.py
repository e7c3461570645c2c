"""Buffers of images, returned to the system as soon as they are freed."""

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_MAPPED_BYTES: Final = 2**20


def return_freed_buffers() -> None:
    """Let glibc map each buffer of 1 MB or more by itself, so that freeing it returns it to the system.

    Otherwise, glibc raises this threshold up to 32 MB as buffers are freed, and keeps the memory of images for later
    (man 3 mallopt). Other C libraries have no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
