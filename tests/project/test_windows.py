"""Serving without what Windows lacks: modules, signals and functions of POSIX are removed before Mien is imported.

Real Windows runs the smoke test of `.github/workflows/ci.yml`.
"""

import csv
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from benchmarks.background import free_port
from mien.app.labeling import images, pages, scan
from mien.app.labeling.options import LabelOptions
from mien.data import atomic
from tests.support import ROOT, sample_photo

# The standard library and packages are imported first: on Linux, they may use what is removed.
WITHOUT_POSIX = """
import asyncio, ctypes, os, signal, socket, sys
import cv2, fastapi, filelock, multiprocessing.popen_spawn_posix, numpy, onnxruntime, PIL.Image, platformdirs
import prometheus_client, pydantic_settings, rich.console, rich.progress, sqlite3, subprocess, tempfile, typer, uvicorn
import uvicorn.supervisors, webbrowser

for module in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "uvloop", "syslog"):
    sys.modules[module] = None
kept = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN"}
for name in [name for name in dir(signal) if name.startswith("SIG") and name.isupper() and name not in kept]:
    delattr(signal, name)
for name in ("fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "killpg", "setsid", "uname", "nice", "sync",
             "sched_getaffinity", "statvfs", "chown", "mkfifo", "O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW", "sysconf"):
    delattr(os, name)
for name in ("SO_REUSEPORT", "SO_PEERCRED", "TCP_USER_TIMEOUT", "MSG_DONTWAIT"):
    delattr(socket, name)

def no_signal_handler(*arguments):
    raise NotImplementedError  # of every event loop on Windows

asyncio.AbstractEventLoop.add_signal_handler = no_signal_handler
asyncio.SelectorEventLoop.add_signal_handler = no_signal_handler
filelock.FileLock = filelock.SoftFileLock
"""
MIEN = "import mien.app.cli; sys.exit(mien.app.cli.main())"
IMPORT_ALL_AND_SERVE = """
import importlib, json, pkgutil, threading, time, urllib.request
import mien.analyzer, mien.app
for module in pkgutil.walk_packages(mien.app.__path__, "mien.app."):
    importlib.import_module(module.name)
from mien.app.main import create_app
from mien.app.service import server
from mien.app.settings import load_settings

real_dup = os.dup
def dup(number):
    raise OSError(9, "a socket is not a file descriptor")
os.dup = dup

def ask_and_stop():
    request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/expressions", open(sys.argv[2], "rb").read())
    request.add_header("Content-Type", "image/jpeg")
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                print("labeled", json.load(response)["images"][0]["faces"][0]["label"], flush=True)
            break
        except OSError:
            time.sleep(0.1)
    signal.raise_signal(signal.SIGINT)

threading.Thread(target=ask_and_stop, daemon=True).start()
server.run(load_settings(port=int(sys.argv[1]), device="cpu", drain_s=0))
print("stopped", flush=True)
"""


def _run(body: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_POSIX + body, *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_a_folder_is_labeled_without_posix_and_to_a_windows_code_page(tmp_path: Path) -> None:
    photos = tmp_path / "写真"
    photos.mkdir()
    (photos / "笑顔.jpg").write_bytes(sample_photo().read_bytes())
    result = _run(MIEN, "label", str(photos), "--out", str(photos / "結果"), cwd=tmp_path, PYTHONIOENCODING="cp1252")
    assert result.returncode == 0, result.stderr
    with (photos / "結果" / "labels.csv").open(encoding="utf-8-sig", newline="") as table:
        (row,) = csv.DictReader(table)
    assert row["file"] == "笑顔.jpg"
    assert (photos / "結果" / "annotated" / "笑顔.jpg").stat().st_size > 0


def test_every_module_is_imported_and_the_service_responds_and_stops_without_posix(tmp_path: Path) -> None:
    result = _run(IMPORT_ALL_AND_SERVE, str(free_port()), str(sample_photo()), cwd=tmp_path)
    assert "labeled happiness" in result.stdout, result.stderr
    assert "stopped" in result.stdout, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "name", ["con.jpg", "AUX", "nul.tar.png", "lpt1.jpg", "12:30.jpg", "what?.jpg", "a\\b.jpg", "..\\..\\up.jpg"]
)
def test_a_written_name_is_valid_on_windows_and_unique(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_WINDOWS", True)
    for folder in ("", "holiday. /", "com3/", "C:/"):
        written = images.annotated_name(folder + name, -1).split("/")
        assert not any(set(part) & set('<>:"\\|?*') or part.endswith((".", " ")) for part in written)
        assert not {part.split(".")[0].lower() for part in written} & {"con", "aux", "nul", "lpt1", "com3"}
        assert images.annotated_name(folder + name, -1) != images.annotated_name(folder + f"_{name}", -1)


@pytest.mark.parametrize("name", ["console.jpg", "a.b.jpg", "holiday/IMG_0001.JPG", "com10.png"])
def test_a_valid_name_is_the_same_on_windows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = images.annotated_name(name, -1)
    monkeypatch.setattr(images, "_WINDOWS", True)
    assert images.annotated_name(name, -1) == elsewhere


def test_names_in_tables_have_forward_slashes_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "os", SimpleNamespace(sep="\\", fsencode=os.fsencode))
    assert scan.printable("photos\\xab\\1.jpg") == "photos/xab/1.jpg"


@pytest.mark.parametrize("refusals", [2, 9])
def test_a_file_that_is_open_elsewhere_is_replaced_once_it_is_closed_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    calls = itertools.count()
    replace = Path.replace

    def busy(part: Path, target: Path) -> Path:
        if next(calls) < refusals:
            raise PermissionError(13, "Access is denied", str(part))
        return replace(part, target)

    monkeypatch.setattr(atomic, "_RETRY_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Path, "replace", busy)
    target = tmp_path / "labels.csv"
    if refusals == 2:
        atomic.write_atomic(target, "new")
        assert target.read_text(encoding="utf-8") == "new"
        return
    with pytest.raises(PermissionError, match="open in another program") as refused:
        atomic.write_atomic(target, "new")
    assert refused.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []


def _listed(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return list(scan._paths(str(path), null=False))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_list_with_a_byte_order_mark_and_line_ends_of_windows_is_read(tmp_path: Path, encoding: str) -> None:
    names = ["a.jpg", "笑顔.jpg", *(f"{number:06d}.jpg" for number in range(10_000))]
    assert _listed(tmp_path / "list.txt", "\r\n".join(names).encode(encoding)) == names
    assert _listed(tmp_path / "list.txt", b"") == []


def test_a_list_in_another_encoding_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(scan.NoInput, match="damaged UTF-16"):
        _listed(tmp_path / "list.txt", "a.jpg\r\n".encode("utf-16")[:-1])
    windows = SimpleNamespace(sep="\\", path=os.path, fsencode=os.fsencode, fsdecode=lambda name: name.decode("utf-8"))
    monkeypatch.setattr(scan, "os", windows)
    with pytest.raises(scan.NoInput, match="not UTF-8"):
        _listed(tmp_path / "list.txt", b"caf\xe9.jpg\r\n")


def test_inputs_and_output_on_different_drives_have_no_links_and_long_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "commonpath", Mock(side_effect=ValueError("Paths don't have the same drive")))
    assert pages.relative_link(b"D:\\photos\\a.jpg", tmp_path) == ""
    for folder in ("one", "two"):
        (tmp_path / folder / "photos").mkdir(parents=True)
    inputs = tuple(str(tmp_path / folder / "photos") for folder in ("one", "two"))
    assert list(scan._roots(LabelOptions(inputs=inputs, out=tmp_path / "out")).values()) == list(inputs)
