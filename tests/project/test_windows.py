"""Serving without what Windows lacks: modules, signals and functions of POSIX are removed before Mien is imported.

Real Windows runs the smoke test of `.github/workflows/ci.yml`.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from benchmarks.serving import free_port
from mien.app.labeling import copies, inputs, report
from mien.app.labeling.options import LabelOptions
from mien.data import atomic
from tests.support import ROOT, output_of, sample_photo
from tests.support.albums import rows_of

# The standard library and packages are imported first: on Linux, they may use what is removed.
SCRIPT = """
import asyncio, ctypes, os, signal, socket, sys
import cv2, fastapi, filelock, multiprocessing.popen_spawn_posix, numpy, onnxruntime, PIL.Image, platformdirs
import prometheus_client, pydantic_settings, rich.console, rich.progress, sqlite3, subprocess, tempfile, typer, uvicorn
import uvicorn.supervisors, webbrowser

for module in "fcntl resource pwd grp termios tty pty uvloop syslog".split():
    sys.modules[module] = None
kept = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN"}
for name in [name for name in dir(signal) if name.startswith("SIG") and name.isupper() and name not in kept]:
    delattr(signal, name)
for name in ("fork forkpty getuid geteuid getgid getpgid killpg setsid uname nice sync sched_getaffinity statvfs chown "
             "mkfifo O_NONBLOCK O_DIRECTORY O_NOFOLLOW sysconf").split():
    delattr(os, name)
for name in "SO_REUSEPORT SO_PEERCRED TCP_USER_TIMEOUT MSG_DONTWAIT".split():
    delattr(socket, name)

def no_signal_handler(*arguments):
    raise NotImplementedError  # of every event loop on Windows

asyncio.AbstractEventLoop.add_signal_handler = no_signal_handler
asyncio.SelectorEventLoop.add_signal_handler = no_signal_handler
filelock.FileLock = filelock.SoftFileLock

import contextlib, importlib, json, pkgutil, threading, time, urllib.request
import mien.analyzer, mien.app
for module in pkgutil.walk_packages(mien.app.__path__, "mien.app."):
    importlib.import_module(module.name)
from mien.app.cli import main
from mien.app.service import start as service
from mien.app.settings import load_settings

_, port, photo, *command = sys.argv
sys.argv = ["mien", *command]
with contextlib.suppress(SystemExit):
    main()
signal.signal(signal.SIGINT, signal.default_int_handler)  # the command's would end the service

def ask_and_stop():
    address = f"http://127.0.0.1:{port}/v1/expressions"
    request = urllib.request.Request(address, open(photo, "rb").read(), {"Content-Type": "image/jpeg"})
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=20) as response:
            print("served", json.load(response)["images"][0]["faces"][0]["label"], flush=True)
            break
        time.sleep(0.1)
    signal.raise_signal(signal.SIGINT)

threading.Thread(target=ask_and_stop, daemon=True).start()
service.run(load_settings(port=int(port), device="cpu", workers=1))
print("stopped", flush=True)
"""


def test_a_folder_is_labeled_and_the_service_responds_and_stops_without_posix_and_utf8(tmp_path: Path) -> None:
    (photos := tmp_path / "写真").mkdir()
    (photos / "笑顔.jpg").write_bytes(sample_photo().read_bytes())
    arguments = [str(free_port()), str(sample_photo()), "label", str(photos), "--out", str(photos / "結果")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"}  # a code page of Windows
    stdout = output_of(sys.executable, "-c", SCRIPT, *arguments, cwd=tmp_path, env=environment)
    (row,) = rows_of(photos / "結果")
    assert row["file"] == "笑顔.jpg"
    assert (photos / "結果" / "annotated" / "笑顔.jpg").stat().st_size > 0
    assert "served happiness" in stdout
    assert "stopped" in stdout


@pytest.mark.parametrize("name", ["con.jpg", "nul.tar.png", "12:30.jpg", "..\\..\\up.jpg"])
def test_a_written_name_is_valid_on_windows_and_unique(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_WINDOWS", True)
    for folder in ("", "holiday. /", "com3/", "C:/"):
        written = copies.annotated_name(folder + name, -1).split("/")
        assert not any(set(part) & set('<>:"\\|?*') or part.endswith((".", " ")) for part in written)
        assert not {part.split(".")[0].lower() for part in written} & {"con", "nul", "com3"}
        assert copies.annotated_name(folder + name, -1) != copies.annotated_name(folder + f"_{name}", -1)


def test_a_file_that_is_open_elsewhere_is_replaced_once_it_is_closed_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, replace, refused = tmp_path / "labels.csv", Path.replace, PermissionError(13, "Access is denied")
    monkeypatch.setattr(atomic, "_RETRY_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=refused))
    with pytest.raises(PermissionError, match="open in another program") as named:
        atomic.write_atomic(target, "new")
    assert named.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []
    closed = Mock(side_effect=[refused, refused, None])
    monkeypatch.setattr(Path, "replace", lambda part, to: (closed(), replace(part, to)))
    atomic.write_atomic(target, "new")
    assert target.read_text(encoding="utf-8") == "new"


def test_names_have_forward_slashes_and_are_long_without_links_on_different_drives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as windows:
        windows.setattr(inputs, "os", SimpleNamespace(sep="\\", fsencode=os.fsencode))
        assert inputs.printable("photos\\xab\\1.jpg") == "photos/xab/1.jpg"
    monkeypatch.setattr(os.path, "commonpath", Mock(side_effect=ValueError("Paths don't have the same drive")))
    assert report.relative_link(b"D:\\photos\\a.jpg", tmp_path) == ""
    for folder in ("one", "two"):
        (tmp_path / folder / "photos").mkdir(parents=True)
    given = [str(tmp_path / folder / "photos") for folder in ("one", "two")]
    assert list(inputs.roots(LabelOptions(inputs=given, out=tmp_path / "out"), {}).values()) == given
