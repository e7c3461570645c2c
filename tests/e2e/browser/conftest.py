"""Chromium with a camera that shows a moving face, a running service, and pages without console errors."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserType, sync_playwright

from tests.support.browser import ALLOWED, CAMERA, WAIT_MS, Tab, launch, serving, write_camera
from tests.support.serving import Server

Open = Callable[..., Tab]


@pytest.fixture(scope="package")
def browsers() -> Iterator[BrowserType]:
    """Playwright, stopped after the tests of this package: its event loop blocks others from starting one."""
    with sync_playwright() as driver:
        yield driver.chromium


@pytest.fixture(scope="package")
def browser(browsers: BrowserType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with camera access that shows the moving face; mien.test is this machine, but not a secure address."""
    film = write_camera(tmp_path_factory.mktemp("camera") / "face.y4m")
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
        path: str = "/", *, inside: Browser | None = None, at: str | None = None, script: str = "", **options: object
    ) -> Tab:
        context = (inside or browser).new_context(accept_downloads=True, **options)
        if script:
            context.add_init_script(script)
        tab = Tab(context.new_page())
        tabs.append(tab)
        tab.page.goto((at or site.url) + path, timeout=WAIT_MS)
        tab.wait_until_ready()
        if tab.page.locator("#stage").count() == 0:  # another page, which does not say when it is ready
            tab.page.wait_for_load_state("networkidle", timeout=WAIT_MS)
        return tab

    yield opened
    errors = [error for tab in tabs for error in tab.errors]
    for tab in tabs:
        tab.page.context.close()
    assert not errors
