"""YuNet's file: where it is searched for, how it is downloaded, and the rejection of any other file."""

import hashlib
from pathlib import Path

import pytest

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.app.inference.detect import weights
from mien.app.inference.detect.weights import YUNET_FILE, fetch_yunet, find_yunet

GOOD = b"stands for the published network"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The file to download; urllib reads it by its URL, as one of the web."""
    path = tmp_path / "published.onnx"
    path.write_bytes(GOOD)
    return path


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pin the hash of `GOOD`, and use an empty user cache."""
    monkeypatch.setattr(weights, "YUNET_SHA256", hashlib.sha256(GOOD).hexdigest())
    cache = tmp_path / "cache"
    monkeypatch.setattr(weights, "cache_dir", lambda: cache)
    return cache


def test_the_file_is_fetched_once_and_then_found(published: Path, pinned: Path) -> None:
    path = fetch_yunet(url=published.as_uri())
    assert path == pinned / YUNET_FILE
    assert path.read_bytes() == GOOD
    published.unlink()
    assert fetch_yunet(url=published.as_uri()) == find_yunet(None) == path
    assert [file.name for file in pinned.iterdir()] == [YUNET_FILE]
    path.write_bytes(b"half")
    published.write_bytes(GOOD)
    assert fetch_yunet(url=published.as_uri()).read_bytes() == GOOD, "a damaged file is fetched again"


def test_a_download_with_another_hash_is_rejected_and_not_written(published: Path, pinned: Path) -> None:
    published.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DownloadError, match=r"42 bytes with sha256 .* expected .* Nothing was written"):
        fetch_yunet(url=published.as_uri())
    assert not pinned.exists()
    published.write_bytes(GOOD)
    with pytest.raises(DownloadError, match="cannot write"):
        fetch_yunet(published / "folder", url=published.as_uri())


def test_a_damaged_file_is_named_and_never_skipped(tmp_path: Path, pinned: Path) -> None:
    models = tmp_path / "models"
    for folder, body in ((models, b"damaged"), (pinned, GOOD)):
        folder.mkdir()
        (folder / YUNET_FILE).write_bytes(body)
    with pytest.raises(DetectorUnavailable, match=f"models/{YUNET_FILE} has sha256 .*mien models pull"):
        find_yunet(models)
    (models / YUNET_FILE).write_bytes(GOOD)
    assert find_yunet(models) == models / YUNET_FILE, "the folder comes before the cache"
