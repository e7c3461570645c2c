"""YuNet's weights: search on disk, verification by hash, and download on request (`mien models pull`).

YuNet (Wu, Peng, Yu 2023, "YuNet: A Tiny Millisecond-level Face Detector") is published in the OpenCV Zoo under the MIT
license. The file is pinned by its sha256: any other file of this name is an error.
"""

import hashlib
import os
import threading
import urllib.request
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import platformdirs

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.data.atomic import atomic_path
from mien.models.manifest import sha256_of

YUNET_FILE: Final = "face_detection_yunet_2023mar.onnx"
YUNET_SHA256: Final = "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4"
_COMMIT: Final = "82b38c8f98e7b52aa171400f3e4c722352d0669f"  # the file may move on the main branch
# The repository keeps the file in Git LFS: the `raw` address returns a pointer of three lines.
YUNET_URL: Final = (
    f"https://media.githubusercontent.com/media/opencv/opencv_zoo/{_COMMIT}/models/face_detection_yunet/{YUNET_FILE}"
)
TIMEOUT_S: Final = 10.0
OPTIONAL_TIMEOUT_S: Final = 3.0
_GRACE_S: Final = 0.5  # so that the timeout of the socket comes first
_MAX_BYTES: Final = 1_000_000  # the file has 232,589 bytes


def cache_dir() -> Path | None:
    """User cache folder for downloaded files; not created here. None for a user without a home."""
    try:
        return platformdirs.user_cache_path("mien", appauthor=False)
    except RuntimeError:  # HOME is unset, and the user is a number without a name
        return None


def find_yunet(models_dir: Path | None) -> Path | None:
    """Return YuNet's verified file from `models_dir`, else from the user cache, else None.

    Raises: DetectorUnavailable, if the file has another hash.
    """
    for folder in filter(None, (models_dir, cache_dir())):
        path = folder / YUNET_FILE
        # not is_file, which raises in a folder that this user may not read, such as the home of another one
        if not os.access(path, os.F_OK):
            continue
        try:
            actual = sha256_of(path)
        except OSError as error:
            raise DetectorUnavailable(f"detector yunet: cannot read {path} ({error.strerror})") from error
        if actual != YUNET_SHA256:
            raise DetectorUnavailable(
                f"detector yunet: {path} has sha256 {actual[:12]}..., expected {YUNET_SHA256[:12]}.... The file is "
                "damaged or another version: delete it and run `mien models pull`."
            )
        return path
    return None


def fetch_yunet(folder: Path | None = None, *, url: str | None = None, timeout_s: float = TIMEOUT_S) -> Path:
    """Download YuNet to `folder` (default: the user cache) unless it exists, atomically.

    Raises: DownloadError.
    """
    parent = folder or cache_dir()
    if parent is None:
        raise DownloadError("no folder for the file, because HOME is unset: give one with --to")
    target = parent / YUNET_FILE
    with suppress(OSError):
        if sha256_of(target) == YUNET_SHA256:
            return target
    url = url or YUNET_URL
    payload = _download(url, timeout_s)
    actual = hashlib.sha256(payload).hexdigest()
    if actual != YUNET_SHA256:
        raise DownloadError(
            f"{url} returned {len(payload):,} bytes with sha256 {actual[:12]}..., expected {YUNET_SHA256[:12]}...: "
            "the page of a proxy, or another version. Nothing was written."
        )
    try:
        with atomic_path(target) as part:
            part.write_bytes(payload)
            part.chmod(0o644)  # a service may run as another user
    except OSError as error:
        raise DownloadError(f"cannot write {target} ({error.strerror})") from error
    return target


def _download(url: str, timeout_s: float) -> bytes:
    try:
        with _connect(url, timeout_s) as response:
            payload: bytes = response.read(_MAX_BYTES)
    except (OSError, HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or "no response"
        raise DownloadError(
            f"cannot download {url} within {timeout_s:g} s ({reason}). Copy {YUNET_FILE} from the OpenCV Zoo to a "
            "folder and set MIEN_MODELS_DIR to it; until then, MIEN_DETECTOR=auto uses the built-in detector."
        ) from error
    return payload


def _connect(url: str, timeout_s: float) -> Any:
    """Open `url` in a thread, because the timeout of a socket does not cover name resolution."""
    response: Future[Any] = Future()

    def work() -> None:
        try:
            response.set_result(urllib.request.urlopen(url, timeout=timeout_s))  # noqa: S310  # pinned https URL
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # closes the connection
            response.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return response.result(timeout_s + _GRACE_S)
