"""The page as static files: without a service, in local mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mien.app.service.page import write_page
from mien.app.settings import load_settings
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.test_local import label_photo, needs_runtime, runs, wait_for_models
from tests.support.stores import serving_in_thread

pytestmark = [pytest.mark.timeout(900), needs_runtime]


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as static files under a sub-path."""
    folder = tmp_path_factory.mktemp("static")
    write_page(folder / "people" / "mien", load_settings())
    return folder


@contextmanager
def files_at(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with serving_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


def test_the_static_page_labels_camera_and_photos(open_tab: Open, site_folder: Path) -> None:
    with files_at(site_folder) as url:
        tab = open_tab("people/mien/", at=url)
        assert not tab.page.evaluate("crossOriginIsolated"), "no special headers"
        assert tab.page.is_checked("#local")
        assert tab.page.is_disabled("#local")
        wait_for_models(tab)
        tab.start_camera()
        assert "1 thread;" in runs(tab)
        assert label_photo(tab).startswith("happiness")
        tab.page.click("#about")
        tab.page.click("#card")
        assert tab.page.inner_text("pre").startswith("# ")
        tab.ignore_errors("favicon.ico")  # which Chromium looks for beside a text
