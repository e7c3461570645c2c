"""The page as static files: without a service, in local mode, and as a package for other pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mien.app.service.static_page import write_page
from mien.app.settings import load_settings
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.test_local import SAMPLES, labeled, needs_runtime, wait_for_models
from tests.support import output_of
from tests.support.browser import WAIT_MS
from tests.support.stores import serving_in_thread

pytestmark = [pytest.mark.timeout(900), needs_runtime]
SEEN = "() => document.querySelector('mien-camera').addEventListener('faces', ({ detail }) => (window.seen = detail))"


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
        tab.start_camera()
        assert "1 thread)" in tab.page.inner_text("#runs")
        (face,) = labeled(tab, SAMPLES[:1])[SAMPLES[0].name]
        assert face["label"] == "happiness"
        tab.page.click("#card")
        tab.page.wait_for_selector(".document h1", timeout=WAIT_MS)


def test_the_service_worker_leaves_to_another_app_its_pages_and_then_its_address(
    open_tab: Open, site_folder: Path, tmp_path: Path
) -> None:
    (root := tmp_path / "root").symlink_to(site_folder / "people" / "mien")
    with files_at(root) as url:
        tab = open_tab("", at=url, service_workers="allow")
        tab.wait_until("Boolean(navigator.serviceWorker.controller)")
        wait_for_models(tab)
        root.unlink()
        for name in ("index.html", "reports/index.html", "page/index.html"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("<link rel=icon href=data:,><title>Other</title>", encoding="utf-8")
        for path in ("reports/", "page/", ""):
            tab.page.goto(url + path)
            assert tab.page.title() == "Other"
            assert not tab.page.evaluate("crossOriginIsolated"), path
        tab.wait_until("navigator.serviceWorker.getRegistrations().then((found) => found.length === 0)")
        assert tab.page.evaluate("caches.keys()") == []


def test_the_example_page_labels_with_the_installed_package(open_tab: Open, site_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(site_folder / "people" / "mien" / "page", tmp_path / "node_modules" / "mien-page")
    example = (site_folder / "people" / "mien" / "example.html").read_text(encoding="utf-8")
    page = example.replace("./page/index.js", "./node_modules/mien-page/index.js")
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    with files_at(tmp_path) as url:
        tab = open_tab("", at=url)
        tab.page.set_input_files("input", SAMPLES[0])
        tab.wait_until("document.querySelector('output').textContent === 'happiness'")
        tab.page.evaluate(SEEN)
        tab.page.click("mien-camera button")
        tab.wait_until("window.seen?.length === 1 && window.seen[0].track === 1")
        tab.page.click("mien-camera button")
        assert tab.page.evaluate("document.querySelector('mien-camera').media") is None, "the camera is released"
        tab.ignore_errors("favicon.ico")
    if node := shutil.which("node"):  # where there is no document
        script = "console.log(Object.keys(await import('mien-page')).join())"
        assert output_of(node, "--input-type=module", "--eval", script, cwd=tmp_path).strip() == "label,labeler"
