"""YuNet's file: where it is searched for, how it is downloaded, and the rejection of any other file."""

import hashlib
from pathlib import Path

import pytest

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.app.inference.detect import weights
from mien.app.inference.detect.weights import YUNET_FILE, fetch_yunet, find_yunet

GOOD = b"stands for the published network"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty user cache; the pinned hash is that of `GOOD`."""
    monkeypatch.setattr(weights, "YUNET_SHA256", hashlib.sha256(GOOD).hexdigest())
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_only_the_published_file_is_written_and_then_found(tmp_path: Path, cache: Path) -> None:
    published = tmp_path / "published.onnx"  # urllib reads it by its URL, as one of the web
    published.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DownloadError, match=r"42 bytes with sha256 .* expected .* Nothing was written"):
        fetch_yunet(url=published.as_uri())
    assert not cache.exists()
    for damaged in (None, b"half"):  # which is fetched again
        published.write_bytes(GOOD)
        if damaged:
            (cache / YUNET_FILE).write_bytes(damaged)
        assert fetch_yunet(url=published.as_uri()).read_bytes() == GOOD
        published.unlink()
        assert fetch_yunet(url=published.as_uri()) == find_yunet(None) == cache / YUNET_FILE
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
