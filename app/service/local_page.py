"""Local page: served to this machine only, and opened in the browser."""

import os
import socket
import threading
import time
import urllib.request
import webbrowser
from typing import Final

from rich.console import Console

from mien.app.errors import SettingsError
from mien.app.service import server
from mien.app.settings import Settings

_LOCAL: Final = "127.0.0.1"


def serve_page(settings: Settings, *, browser: bool) -> None:
    """Serve the page to this machine only, and open it when it responds. Raises: StartupError and its subclasses."""
    local = settings.model_copy(update={"host": _LOCAL, "workers": 1})
    port = _port(local)
    address = f"http://{_LOCAL}:{port}/"
    threading.Thread(target=_open_when_ready, args=(address, browser), daemon=True).start()
    server.run(local.model_copy(update={"port": port}))


def _port(settings: Settings) -> int:
    """Return the configured port, or any free port if the default is in use. Raises: SettingsError."""
    with socket.socket() as probe:
        if os.name == "posix":  # on Windows, the option shares a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if "port" in settings.model_fields_set:
                raise SettingsError(f"port {settings.port}: {error.strerror}. Choose another port") from error
            return _port(settings.model_copy(update={"port": 0}))
        return int(probe.getsockname()[1])


def _open_when_ready(address: str, browser: bool) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is not for this machine
    for _ in range(1200):
        try:
            with direct.open(f"{address}ready", timeout=5):
                break
        except OSError:
            time.sleep(0.1)
    else:
        return
    opened = browser and webbrowser.open(address)
    Console(stderr=True).out(f"The page is {'open at' if opened else 'at'} {address} (press Ctrl-C to stop)")
