"""Chromium with a fake camera, a file of pictures that it plays instead of a device, and a service for its pages."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserType, ConsoleMessage, FloatRect, Page, WebSocket

from mien.data.contract import decode
from mien.models.manifest import artifact_dir
from tests.support import ROOT
from tests.support.serving import Server
from tests.support.serving import serving as serving_process

WAIT_MS = 60_000
_QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
CAMERA = "--use-fake-device-for-media-stream"
ALLOWED = "--use-fake-ui-for-media-stream"


def launch(browsers: BrowserType, *extra: str) -> Browser:
    """Start the browser without a window; skips the test if there is none."""
    named = os.environ.get("MIEN_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium is installed: `apt-get install chromium`, or name one in MIEN_CHROMIUM")
    return browsers.launch(executable_path=program, args=[*_QUIET, *extra], timeout=90_000)


def write_camera(path: Path) -> Path:
    """Write a face that moves through the left half and back as Y4M of 10 frames per second. Returns `path`."""
    photo = decode((ROOT / "samples/photos/astronaut.jpg").read_bytes())
    room = cv2.GaussianBlur(cv2.resize(photo[300:, 300:], (640, 480)), (0, 0), 15)
    head = cv2.resize(photo[30:240, 150:360], (230, 230), interpolation=cv2.INTER_CUBIC)
    with path.open("wb") as file:
        file.write(b"YUV4MPEG2 W640 H480 F10:1 C420\n")
        for angle in np.linspace(0, 2 * np.pi, 60, endpoint=False):
            frame = room.copy()
            left, top = round(45 + 30 * np.sin(angle)), round(125 + 40 * np.cos(angle))
            frame[top : top + 230, left : left + 230] = head
            file.write(b"FRAME\n" + cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420).tobytes())
    return path


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Server]:
    """A running service of the released model for pages."""
    # no page shows a face on its side, except where a test sets detect_rotated
    chosen = {"detect_rotated": False, "allowed_hosts": "127.0.0.1,localhost,mien.test"}
    chosen |= {"models_dir": os.environ.get("MIEN_MODELS_DIR"), **settings}
    with serving_process(folder, artifact_dir(None), **chosen) as server:
        yield server


@dataclass
class Tab:
    """A page, its console errors and warnings, and the messages of its streams in order."""

    page: Page
    errors: list[str] = field(default_factory=list)
    streams: list[WebSocket] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("websocket", self._connected)

    def _logged(self, message: ConsoleMessage) -> None:
        caused_by_test = "willReadFrequently" in message.text  # of the canvases that tests read
        if message.type in {"error", "warning"} and not caused_by_test:
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _connected(self, stream: WebSocket) -> None:
        self.streams.append(stream)
        stream.on("framesent", lambda payload: self.sent.append(bytes(payload)))
        stream.on("framereceived", lambda payload: self.results.append(str(payload)))

    def ignore_errors(self, *parts: str) -> None:
        """Forget the errors that contain one of `parts`: the browser logs failures that a test causes."""
        self.errors[:] = [error for error in self.errors if not any(part in error for part in parts)]

    def download(self, button: str) -> tuple[str, bytes]:
        """Click a button that downloads a file. Returns name and content."""
        with self.page.expect_download() as waiting:
            self.page.click(button)
        return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()

    def box(self, selector: str) -> FloatRect:
        """Position and size of a visible element, CSS pixels."""
        box = self.page.locator(selector).bounding_box()
        assert box is not None, f"{selector} is not visible"
        return box

    def wait_until_ready(self) -> None:
        self.page.wait_for_selector("html[data-ready], body:not(:has(#stage))", state="attached", timeout=WAIT_MS)

    def choose_local(self, wanted: bool) -> None:
        """Set the switch of local mode, which is in the settings."""
        self.page.click("#settings")
        self.page.set_checked("#local", wanted)
        self.page.keyboard.press("Escape")

    def start_camera(self) -> None:
        self.page.click("#start")
        self.page.wait_for_selector("#faces .face-label:not(:empty)", timeout=WAIT_MS)

    def wait_until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true; polled, because the content security policy forbids eval."""
        self.wait_for(lambda: self.page.evaluate(expression), f"still false: {expression}")

    def wait_for_results(self, count: int) -> None:
        """Wait for `count` more results."""
        goal = len(self.results) + count
        self.wait_for(lambda: len(self.results) >= goal, f"{count} results did not arrive")

    def wait_for(self, met: Callable[[], object], failure: str) -> None:
        """Wait until a condition is met, while Playwright handles events."""
        for _ in range(WAIT_MS // 50):
            if met():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(failure)
