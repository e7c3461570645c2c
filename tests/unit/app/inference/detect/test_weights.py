"""YuNet's file: where it is searched for, how it is downloaded, and the rejection of any other file."""

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.app.inference.detect import weights
from mien.app.inference.detect.weights import YUNET_FILE, cache_dir, fetch_yunet, find_yunet, require_yunet

GOOD = b"stands for the published network"


class _Mirror(ThreadingHTTPServer):
    """Responds to every GET with `body`, and counts the requests."""

    body = GOOD
    status = 200
    requests = 0


class _Handler(BaseHTTPRequestHandler):
    server: _Mirror

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
        pass


@pytest.fixture
def mirror() -> Iterator[_Mirror]:
    server = _Mirror(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pin the hash of `GOOD`, and use an empty user cache."""
    monkeypatch.setattr(weights, "YUNET_SHA256", hashlib.sha256(GOOD).hexdigest())
    cache = tmp_path / "cache"
    monkeypatch.setattr(weights, "cache_dir", lambda: cache)
    return cache


def address(mirror: _Mirror) -> str:
    return f"http://127.0.0.1:{mirror.server_address[1]}/{YUNET_FILE}"


def test_the_file_is_fetched_once_and_then_found(mirror: _Mirror, pinned: Path) -> None:
    path = fetch_yunet(url=address(mirror))
    assert path == pinned / YUNET_FILE
    assert path.read_bytes() == GOOD
    assert fetch_yunet(url=address(mirror)) == path
    assert mirror.requests == 1
    assert find_yunet(None) == path
    assert [file.name for file in pinned.iterdir()] == [YUNET_FILE]


def test_other_users_can_read_the_file(mirror: _Mirror) -> None:
    before = os.umask(0o077)
    try:
        path = fetch_yunet(url=address(mirror))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_download_with_another_hash_is_rejected_and_not_written(mirror: _Mirror, pinned: Path) -> None:
    mirror.body = b"version https://git-lfs.github.com/spec/v1"
    with pytest.raises(DownloadError, match=r"42 bytes with sha256 .* expected .* Nothing was written"):
        fetch_yunet(url=address(mirror))
    assert not pinned.exists()


def test_a_server_error_names_the_alternative_to_a_download(mirror: _Mirror) -> None:
    mirror.status = 503
    with pytest.raises(DownloadError, match="MIEN_MODELS_DIR"):
        fetch_yunet(url=address(mirror))


def test_a_server_that_never_responds_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DownloadError, match=r"within 0\.2 s"):
        fetch_yunet(url=f"http://127.0.0.1:{silent.getsockname()[1]}/none", timeout_s=0.2)


def test_a_name_server_that_never_responds_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    def resolve(*_args: object, **_options: object) -> None:
        end.wait(20)
        raise socket.gaierror("no name server")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    begin = time.monotonic()
    with pytest.raises(DownloadError, match="no response"):
        fetch_yunet(url="http://name.invalid/none", timeout_s=0.2)
    assert time.monotonic() - begin < 5
    end.set()


def test_a_response_that_is_not_http_is_a_download_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(DownloadError, match="220 mail"):
            fetch_yunet(url=f"http://127.0.0.1:{server.getsockname()[1]}/none")
        thread.join()


def test_a_damaged_file_is_fetched_again_when_asked(mirror: _Mirror, pinned: Path) -> None:
    pinned.mkdir()
    (pinned / YUNET_FILE).write_bytes(b"half")
    assert fetch_yunet(url=address(mirror)).read_bytes() == GOOD


def test_the_models_folder_comes_before_the_cache(tmp_path: Path, pinned: Path) -> None:
    for folder in (tmp_path / "models", pinned):
        folder.mkdir()
        (folder / YUNET_FILE).write_bytes(GOOD)
    assert find_yunet(tmp_path / "models") == tmp_path / "models" / YUNET_FILE


def test_a_damaged_file_is_named_and_never_skipped(tmp_path: Path, pinned: Path) -> None:
    models = tmp_path / "models"
    for folder, body in ((models, b"damaged"), (pinned, GOOD)):
        folder.mkdir()
        (folder / YUNET_FILE).write_bytes(body)
    with pytest.raises(DetectorUnavailable, match=f"models/{YUNET_FILE} has sha256 .*mien models pull"):
        find_yunet(models)


def test_a_missing_file_is_none_for_auto_and_an_error_for_yunet(tmp_path: Path) -> None:
    assert find_yunet(tmp_path) is None
    with pytest.raises(DetectorUnavailable, match="mien models pull"):
        require_yunet(tmp_path)


def test_a_folder_that_cannot_be_read_has_no_file(tmp_path: Path, mirror: _Mirror) -> None:
    folder = tmp_path / ("x" * 300)  # an error of the system, also for root
    assert find_yunet(folder) is None
    with pytest.raises(DownloadError, match="cannot write"):
        fetch_yunet(folder, url=address(mirror))


@pytest.mark.skipif(os.name == "nt", reason="users have a profile")
def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "cache_dir", cache_dir)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_007)
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert find_yunet(None) is None
    with pytest.raises(DetectorUnavailable, match="HOME is unset"):
        require_yunet(None)
    with pytest.raises(DownloadError, match="HOME is unset"):
        fetch_yunet()


def test_a_folder_that_cannot_be_written_is_reported(mirror: _Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(DownloadError, match="cannot write"):
        fetch_yunet(tmp_path / "file" / "below", url=address(mirror))
