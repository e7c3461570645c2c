"""The page in a browser: kilobytes of a first and a second visit, and frame rate and memory of local mode.

    make runtime
    python -m benchmarks.page
    python -m benchmarks.page --seconds 300

The service and Chromium run on this machine. Counted are all bytes that the service sends, headers included; a second
visit has the service worker of the first. The camera shows one moving face at 640x480 and 30 frames/s; memory is the
resident memory of the page's process after 10 s, and at each fifth of the time. It needs the packages of the tests, and
Chromium.
"""

import argparse
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from benchmarks.background import resident_bytes, service
from benchmarks.results import publish
from tests.support.browser import ALLOWED, CAMERA, WAIT_MS, camera_frames, launch, write_camera

READY = "document.getElementById('place').textContent.startsWith('Ready')"


class Meter:
    """Forwards connections to a port of this machine, and counts the bytes that come back."""

    def __init__(self, port: int) -> None:
        self.received = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            browser, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, target, counted in ((browser, server, False), (server, browser, True)):
                threading.Thread(target=self._forward, args=(source, target, counted), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                self.received += len(part) * counted
                target.sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def visit(context: BrowserContext, meter: Meter, *, local: bool) -> tuple[Page, float]:
    """Open the page, and in local mode the models. Returns it and the kilobytes that it took."""
    before = meter.received
    page = context.new_page()
    page.goto(meter.url, timeout=WAIT_MS)
    page.wait_for_load_state("networkidle")
    if local:
        page.evaluate("() => { const box = document.getElementById('local'); box.checked = false; box.click(); }")
        while not page.evaluate(READY):
            page.wait_for_timeout(200)
    page.wait_for_timeout(2000)
    return page, round((meter.received - before) / 1000, 1)


def frames_and_memory(page: Page, seconds: float) -> dict[str, Any]:
    """Frame rate of local mode with the camera, and the memory of the page."""
    page.click("#start")
    page.wait_for_selector(".face-label:not(:empty)", timeout=WAIT_MS)
    page.wait_for_timeout(10_000)
    memory, rates = [renderer_mb(page)], []
    for _ in range(5):
        for _ in range(round(seconds / 10)):
            page.wait_for_timeout(2000)
            rates.append(float(page.inner_text("#fps")))
        memory.append(renderer_mb(page))
    return {"frames_per_s": round(mean(rates), 1), "latency": page.inner_text("#latency"), "memory_mb": memory}


def renderer_mb(page: Page) -> int:
    """Resident memory of the largest page process of the browser, megabytes."""
    browser = page.context.browser
    assert browser is not None, "opened by new_context"  # noqa: S101
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return round(max(resident_bytes(process["id"]) for process in processes if process["type"] == "renderer") / 1e6)


def measure(browser: Browser, meter: Meter, seconds: float) -> dict[str, Any]:
    """All figures, with and without local mode."""
    results: dict[str, Any] = {}
    for local in (False, True):
        context = browser.new_context()
        for name in ("first", "second"):
            page, kilobytes = visit(context, meter, local=local)
            results[f"{name}_visit{'_local' if local else ''}_kb"] = kilobytes
            if local and name == "second":
                results |= frames_and_memory(page, seconds)
            page.close()
        context.close()
    return results


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="duration of the camera in local mode")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, service() as running, sync_playwright() as driver:
        camera = write_camera(Path(folder) / "face.mjpeg", camera_frames())
        with launch(driver.chromium, CAMERA, ALLOWED, f"--use-file-for-fake-video-capture={camera}") as browser:
            publish(measure(browser, Meter(running.port), seconds), None)


if __name__ == "__main__":
    main()
