"""YuNet's file: where it is searched for, how it is downloaded, and the rejection of any other file."""

import hashlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.app.inference import detector_files
from mien.app.inference.detector_files import YUNET_FILE, fetch_yunet, find_yunet
from tests.support.serving import serving_in_thread

GOOD = b"stands for the published network"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty user cache; the pinned hash is that of `GOOD`."""
    monkeypatch.setattr(detector_files, "YUNET_SHA256", hashlib.sha256(GOOD).hexdigest())
    monkeypatch.setattr(detector_files, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_only_the_published_file_is_written_and_then_found(tmp_path: Path, cache: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with serving_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        path, url = tmp_path / "published.onnx", f"http://127.0.0.1:{server.server_port}/published.onnx"
        with pytest.raises(DownloadError, match=r"cannot download .*404.*MIEN_DETECTOR=auto uses the built-in"):
            fetch_yunet(url=url)
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
        with pytest.raises(DownloadError, match=r"another sha256 than .* Nothing was written"):
            fetch_yunet(url=url)
        assert not list(cache.glob("*"))
        path.write_bytes(GOOD)
        assert fetch_yunet(url=url).read_bytes() == GOOD
        (cache / YUNET_FILE).write_bytes(b"damaged, and fetched again")
        fetch_yunet(url=url)
    assert fetch_yunet(url=url) == find_yunet(None) == cache / YUNET_FILE, "without a download"
    assert [file.name for file in cache.iterdir()] == [YUNET_FILE]


def test_a_damaged_file_is_named_and_never_skipped(tmp_path: Path, cache: Path) -> None:
    models = tmp_path / "models"
    for folder, body in ((models, b"damaged"), (cache, GOOD)):
        folder.mkdir()
        (folder / YUNET_FILE).write_bytes(body)
    with pytest.raises(DetectorUnavailable, match=f"models/{YUNET_FILE} has sha256 .*mien models pull"):
        find_yunet(models)
    (models / YUNET_FILE).write_bytes(GOOD)
    assert find_yunet(models) == models / YUNET_FILE, "the folder comes before the cache"
