"""Chromium with a camera that shows a face, a running service, and tabs whose console errors fail a test."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserType, ConsoleMessage, Page, WebSocket, expect, sync_playwright

from mien.models.manifest import artifact_dir
from tests.support import sample_photo
from tests.support.serving import Server
from tests.support.serving import serving as serving_process

Open = Callable[..., Any]
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)
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


def serving(folder: Path, **settings: object) -> AbstractContextManager[Server]:
    """A running service of the released model for pages, none of which shows a face on its side."""
    usual = {"detect_rotated": False, "allowed_hosts": "127.0.0.1,localhost,mien.test"}
    settings = usual | {"models_dir": os.environ.get("MIEN_MODELS_DIR")} | settings
    return serving_process(folder, artifact_dir(None), **settings)


@dataclass
class Tab:
    """A page, its console errors and warnings, and the messages of its streams in order."""

    page: Page
    errors: list[str] = field(default_factory=list)
    streams: list[WebSocket] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
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

    def wait_until_ready(self) -> None:
        self.page.wait_for_selector("html[data-ready], body:not(:has(#stage))", state="attached")

    def choose_local(self, wanted: bool) -> None:
        """Set the switch of local mode, which is in the settings."""
        self.page.click("#settings")
        self.page.set_checked("#local", wanted)
        self.page.keyboard.press("Escape")

    def start(self, state: str = "live") -> None:
        """Click on Start, and wait for a state of the stage."""
        self.page.click("#start")
        self.page.wait_for_selector(f"#stage[data-state={state}]")

    def start_camera(self) -> None:
        self.page.click("#start")
        self.page.wait_for_selector("#faces .face-label:not(:empty)")

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


@pytest.fixture(scope="package")
def browsers() -> Iterator[BrowserType]:
    """Playwright, stopped after the tests of this package: its event loop blocks others from starting one."""
    with sync_playwright() as driver:
        yield driver.chromium


@pytest.fixture(scope="package")
def browser(browsers: BrowserType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with camera access that shows a face; mien.test is this machine, but not a secure address."""
    film = shutil.copy(sample_photo(), tmp_path_factory.mktemp("camera") / "face.mjpeg")  # one picture, repeated
    camera = (CAMERA, ALLOWED, f"--use-file-for-fake-video-capture={film}")
    with launch(browsers, *camera, "--host-resolver-rules=MAP mien.test 127.0.0.1") as running:
        yield running


@pytest.fixture(scope="package")
def site(browsers: BrowserType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service shared by all tests that do not stop it."""
    with serving(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture
def open_tab(browser: Browser, site: Server) -> Iterator[Open]:
    """A function that opens the page in a new context; at the end, fails if a page logged an error."""
    tabs: list[Tab] = []

    def opened(
        path: str = "/", *, kind: Callable[[Page], Tab] = Tab, inside: Browser | None = None, at: str | None = None,
        script: str = "", **options: object,
    ) -> Tab:  # fmt: skip
        context = (inside or browser).new_context(accept_downloads=True, **options)
        if script:
            context.add_init_script(script)
        tab = kind(context.new_page())
        tabs.append(tab)
        tab.page.goto((at or site.url) + path)
        tab.wait_until_ready()
        if tab.page.locator("#stage").count() == 0:  # another page, which does not say when it is ready
            tab.page.wait_for_load_state("networkidle")
        return tab

    yield opened
    errors = [error for tab in tabs for error in tab.errors]
    for tab in tabs:
        tab.page.context.close()
    assert not errors
