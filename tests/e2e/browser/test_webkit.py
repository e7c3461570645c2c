"""Local mode and the sample in WebKit, the engine of Safari: `apt-get install webkit2gtk-driver xvfb`."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.browser.test_local import needs_runtime
from tests.support import eventually
from tests.support.browser import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_runtime]
DISPLAY = f":{90 + os.getpid() % 1000}"
Script = Callable[[str], Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Script]:
    """The page in WebKit: a function that runs a script in it and returns its value."""
    screen, driver = shutil.which("Xvfb"), shutil.which("WebKitWebDriver")
    browser = next(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"), None)
    if not (screen and driver and browser):
        pytest.skip("WebKit is not installed: `apt-get install webkit2gtk-driver xvfb`")
    port = free_port()
    # in a container, WebKit cannot start its sandbox
    environment = os.environ | {"DISPLAY": DISPLAY, "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1"}
    processes = [subprocess.Popen([screen, DISPLAY, "-screen", "0", "1400x900x24"])]
    processes.append(subprocess.Popen([driver, f"--port={port}"], env=environment))
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)

    def ask(path: str, body: object) -> Any:
        response = client.post(path, json=body)
        assert response.is_success, response.text
        return response.json()["value"]

    def is_up() -> bool:
        with suppress(httpx.TransportError):
            return client.get("/status").is_success
        return False

    try:
        with serving(tmp_path / "served") as site:
            eventually(is_up)
            options = {"binary": str(browser), "args": ["--automation"]}
            session = ask("/session", {"capabilities": {"alwaysMatch": {"webkitgtk:browserOptions": options}}})
            address = f"/session/{session['sessionId']}"
            ask(f"{address}/url", {"url": site.url})
            yield lambda script: ask(f"{address}/execute/sync", {"script": f"return {script}", "args": []})
            client.delete(address)
    finally:
        client.close()
        for process in reversed(processes):
            process.terminate()
            process.wait(20)


def test_local_mode_labels_the_sample_and_the_sample_repeats(page: Script) -> None:
    eventually(lambda: page("document.querySelectorAll('[inert]').length === 0"))
    assert page("crossOriginIsolated")
    page("document.getElementById('local').click()")
    eventually(lambda: page("document.getElementById('place').textContent").startswith("Ready"), timeout_s=120)
    page("document.getElementById('sample-clip').click()")
    eventually(lambda: page("document.querySelector('.face-label')?.textContent"), timeout_s=120)
    eventually(lambda: page("document.getElementById('video').currentTime") > 8)
    eventually(lambda: 0.2 < page("document.getElementById('video').currentTime") < 5)
    before = page("document.getElementById('video').currentTime")
    time.sleep(1)
    assert page("document.getElementById('video').currentTime") > before
