"""The page as static files: without a service, in local mode, and as a package for other pages."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Error, expect

from mien.app.service.static_page import write_page
from mien.app.settings import load_settings
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.test_local import (
    FOUR_CORES,
    SAMPLES,
    label_with_three_threads,
    labeled,
    needs_runtime,
    wait_for_models,
)
from tests.support import output_of
from tests.support.browser import WAIT_MS
from tests.support.stores import serving_in_thread

pytestmark = [pytest.mark.timeout(900), needs_runtime]
SEEN = "() => document.querySelector('mien-camera').addEventListener('faces', ({ detail }) => (window.seen = detail))"
LABEL = "import('./node_modules/mien-page/index.js').then((page) => page.label('x')).catch((error) => error.message)"
# Starts the camera again, and stops it before its video plays.
STOPPED_AT_ONCE = """async () => {
  const camera = (window.camera = document.querySelector('mien-camera'));
  window.before = camera.feed;
  let played;
  const playing = new Promise((resolve) => {
    camera.video.play = () => (resolve(), new Promise((end) => (played = end)));
  });
  const started = camera.start();
  await playing;
  camera.stop();
  played();
  await started;
}"""
VITE_PAGE = """<!doctype html><link rel="icon" href="data:,"><output></output><mien-camera base="mien/"></mien-camera>
<script type="module">
  import { label, labeler } from "mien-page";
  const camera = document.querySelector("mien-camera");
  camera.addEventListener("faces", ({ detail }) => (camera.title = detail.length));
  await labeler({ base: "mien/" });
  document.querySelector("output").textContent = (await label("mien/samples/photo.jpg")).faces[0].label;
</script>"""
USE = """import { label, labeler, type Face, type MienCamera } from "mien-page";

const first: Face | undefined = (await label(new Blob())).faces[0];
const happy: number | undefined = first?.probabilities.happiness;
const { provider } = await (await labeler({ loaded: (bytes, total) => console.log(bytes / total) })).open();
const camera: MienCamera = document.createElement("mien-camera");
camera.addEventListener("faces", ({ detail }) => console.log(detail[0].landmarks.nose.x, happy, provider));
await camera.start();
await label(document.querySelector("img")!);
// @ts-expect-error: a face has a label
console.log(first?.emotion);
"""


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as static files under a sub-path."""
    folder = tmp_path_factory.mktemp("static")
    write_page(folder / "people" / "mien", load_settings())
    return folder


@pytest.fixture(scope="module")
def static_url(site_folder: Path) -> Iterator[str]:
    """The page, served without any header of ours."""
    with files_at(site_folder) as url:
        yield f"{url}people/mien/"


@contextmanager
def files_at(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with serving_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


@pytest.fixture(scope="module")
def other_project(site_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packed package, which is unpacked as npm does it but without its time."""
    folder = tmp_path_factory.mktemp("project")
    npm(folder, "pack", str(site_folder / "people" / "mien" / "page"))
    (tarball,) = folder.glob("*.tgz")
    (folder / "package.json").write_text(json.dumps({"dependencies": {"mien-page": f"file:./{tarball.name}"}}))
    (package := folder / "node_modules" / "mien-page").mkdir(parents=True)
    output_of("tar", "--extract", "--gzip", "--strip-components=1", "--file", tarball, "--directory", package)
    return folder


def npm(folder: Path, *arguments: str) -> None:
    program = shutil.which("npm")
    if program is None:
        pytest.skip("npm is not installed")
    output_of(program, *arguments, cwd=folder, timeout=300)


def test_the_static_page_labels_camera_and_photos(open_tab: Open, static_url: str) -> None:
    tab = open_tab("", at=static_url)
    assert not tab.page.evaluate("crossOriginIsolated"), "no special headers"
    assert tab.page.is_checked("#local")
    assert tab.page.is_disabled("#local")
    tab.start_camera()
    assert "1 thread)" in tab.page.inner_text("#runs")
    (face,) = labeled(tab, SAMPLES[:1])[SAMPLES[0].name]
    assert face["label"] == "happiness"
    tab.page.click("#card")
    tab.page.wait_for_selector(".document h1", timeout=WAIT_MS)
    assert tab.page.locator("footer").count() == 0
    tab.page.click("header a")
    tab.wait_until_ready()


@pytest.mark.parametrize("script", ["", "Object.defineProperty(document, 'featurePolicy', { value: undefined });"])
def test_a_frame_without_permission_says_how_to_get_it_also_where_browsers_do_not_tell(
    open_tab: Open, static_url: str, tmp_path: Path, script: str
) -> None:
    address = static_url.replace("127.0.0.1", "localhost")
    (tmp_path / "index.html").write_text(f'<link rel=icon href="data:,"><iframe src="{address}">', encoding="utf-8")
    with files_at(tmp_path) as url:
        tab = open_tab("", at=url, script=script)
        frame = tab.page.frame_locator("iframe")
        frame.locator("#start").click()
        expect(frame.locator("#state-text")).to_contain_text('<iframe allow="camera">')
        tab.ignore_errors("Permissions policy")


def test_several_threads_label_in_a_static_page_that_its_service_worker_isolates(
    open_tab: Open, static_url: str
) -> None:
    tab = open_tab("", at=static_url, service_workers="allow", script=FOUR_CORES)
    for _ in range(WAIT_MS // 100):
        with suppress(Error):  # the page reloads itself once
            if tab.page.evaluate("crossOriginIsolated"):
                break
        tab.page.wait_for_timeout(100)
    tab.wait_until_ready()
    label_with_three_threads(tab)


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
            (root / name).write_text(
                f"<link rel=icon href=data:,><title>Other</title><h1>{name}</h1>", encoding="utf-8"
            )
        for path in ("reports/", "page/", ""):
            tab.page.goto(url + path)
            assert tab.page.title() == "Other"
            assert not tab.page.evaluate("crossOriginIsolated"), path
        tab.wait_until("navigator.serviceWorker.getRegistrations().then((found) => found.length === 0)")
        assert tab.page.evaluate("caches.keys()") == []


def test_the_example_page_labels_with_the_installed_package(
    open_tab: Open, site_folder: Path, other_project: Path
) -> None:
    example = (site_folder / "people" / "mien" / "example.html").read_text(encoding="utf-8")
    assert example.count("\n") <= 10
    page = example.replace("./page/index.js", "./node_modules/mien-page/index.js")
    (other_project / "index.html").write_text(page, encoding="utf-8")
    with files_at(other_project) as url:
        tab = open_tab("", at=url)
        tab.page.route("**/facts.json", lambda route: route.fulfill(status=503), times=1)
        assert "state its address as `base`" in tab.page.evaluate(LABEL)
        tab.page.set_input_files("input", SAMPLES[0])
        tab.wait_until("document.querySelector('output').textContent === 'happiness'")
        tab.page.evaluate(SEEN)
        tab.page.click("mien-camera button")
        tab.wait_until("window.seen?.length === 1 && window.seen[0].track === 1")
        tab.page.evaluate(STOPPED_AT_ONCE)
        assert tab.page.evaluate("window.camera.feed === window.before"), "it takes no frames"
        assert tab.page.evaluate("window.camera.button.textContent") == "Start camera"
        tab.page.evaluate("() => window.camera.setAttribute('src', './node_modules/mien-page/samples/clip.webm')")
        tab.page.evaluate("() => { window.seen = null; delete window.camera.video.play; }")
        tab.page.click("mien-camera >> text=Play video")
        tab.wait_until("window.seen?.length > 0")
        tab.page.click("mien-camera >> text=Stop")
        assert tab.page.evaluate("window.camera.video.paused")
        tab.ignore_errors("favicon.ico", "status of 503")


def test_the_installed_package_is_imported_where_there_is_no_document(other_project: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "npm is there"
    script = "console.log(Object.keys(await import('mien-page')).join())"
    assert output_of(node, "--input-type=module", "--eval", script, cwd=other_project).strip() == "label,labeler"


@pytest.mark.registry
def test_an_app_that_vite_bundles_labels_with_the_package(
    open_tab: Open, site_folder: Path, other_project: Path, tmp_path: Path
) -> None:
    shutil.copytree(other_project, app := tmp_path / "app")
    npm(app, "install", "--no-audit", "--no-fund", "vite@8")
    (app / "index.html").write_text(VITE_PAGE, encoding="utf-8")
    shutil.copytree(site_folder / "people" / "mien" / "page", app / "public" / "mien")
    npm(app, "exec", "--", "vite", "build", "--base", "./")
    with files_at(app / "dist") as url:
        tab = open_tab("", at=url)
        tab.wait_until("document.querySelector('output').textContent === 'happiness'")
        tab.page.click("mien-camera button")
        tab.wait_until("document.querySelector('mien-camera').title === '1'")


@pytest.mark.registry
def test_the_types_of_the_package_compile(other_project: Path) -> None:
    (other_project / "use.ts").write_text(USE, encoding="utf-8")
    npm(other_project, "install", "--no-audit", "--no-fund", "typescript@5")
    options = "--noEmit --strict --target es2022 --module esnext --moduleResolution bundler"
    npm(other_project, "exec", "--", "tsc", *options.split(), "use.ts")
