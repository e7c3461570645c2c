"""Local mode: the page labels in the browser with the photo graph, and sends nothing; also as static files."""

import base64
import itertools
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import BrowserType

from mien.app.service.page import has_runtime, write_page
from mien.app.settings import load_settings
from mien.data.contract import decode
from mien.data.quality import REASONS
from mien.models.manifest import artifact_dir, load_artifact
from mien.training.evaluate import open_graph
from tests.e2e.browser.conftest import WAIT_MS, Open, Tab, serving
from tests.e2e.browser.test_photos import wait_until_done
from tests.support import ROOT, encoded
from tests.support.serving import serving_in_thread

needs_runtime = pytest.mark.skipif(not has_runtime(), reason="ONNX Runtime Web is not here: `make runtime` fetches it")
pytestmark = [pytest.mark.timeout(900), needs_runtime]
SAMPLES = sorted((ROOT / "samples" / "photos").glob("*.jpg"))


def wait_for_models(tab: Tab) -> None:
    tab.page.wait_for_selector("#place:text-matches('^Ready')", state="attached", timeout=8 * WAIT_MS)


FACES = """async (text) => {
  if (!window.labeler) {
    const { LocalLabeler } = await import('/page/local/labeler.js');
    const base = new URL('/page/', location.href).href;
    window.labeler = new LocalLabeler(await (await fetch('/page/facts.json')).json(), base);
  }
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const photo = new Blob([bytes]);
  const { images: [image] } = await window.labeler.label(photo);
  const frame = await window.labeler.ask({ source: photo, live: true });
  return [image.faces, frame.faces];
}"""


def label_photo(tab: Tab) -> str:
    """Label a sample on the tab of photos. Returns the text of its tile."""
    tab.page.click("#tab-photos")
    tab.page.set_input_files("#files", SAMPLES[0])
    wait_until_done(tab, 1)
    return tab.page.inner_text(".tile .labels")


@pytest.mark.parametrize("settings", [{}, {"prior": "natural", "max_faces": 1, "detection_threshold": 0.9}])
def test_the_page_hands_over_what_the_graph_gives_with_the_settings_of_the_service(
    open_tab: Open, browsers: BrowserType, tmp_path: Path, settings: dict[str, Any]
) -> None:
    two, astronaut = np.zeros((512, 768, 3), np.uint8), decode(SAMPLES[0].read_bytes())
    two[:, :512], two[:256, 512:] = astronaut, cv2.resize(astronaut, (256, 256), interpolation=cv2.INTER_AREA)
    photos = [encoded(two), *(photo.read_bytes() for photo in SAMPLES)]
    folder = artifact_dir(None)
    manifest = load_artifact(folder)
    one, least, natural = np.array(1), np.array(0.9, np.float32), np.zeros(7, np.float32)
    inputs = {"max_faces": one, "score_threshold": least, "prior_correction": natural} if settings else {}
    graph = open_graph(folder / manifest.photo_graphs["int8"].file)
    names = [output.name for output in graph.get_outputs()]
    with serving(tmp_path, **settings) as site:
        page = open_tab(at=site.url).page
        found = [page.evaluate(FACES, base64.b64encode(photo).decode()) for photo in photos]
    pictures = [(photo, live) for photo in photos for live in (False, True)]
    for (photo, live), faces in zip(pictures, itertools.chain(*found), strict=True):
        given = {"photo": decode(photo), "live": np.array(live)} | inputs
        expected = dict(zip(names, graph.run(names, given), strict=True))
        assert len(faces) == len(expected["boxes"])
        for index, face in enumerate(faces):
            points = [face["box"], *face["landmarks"].values()]
            px = np.append(expected["boxes"][index], expected["landmarks"][index])
            assert [value for point in points for value in point.values()] == pytest.approx(px, abs=1)
            assert list(face["probabilities"].values()) == pytest.approx(expected["probabilities"][index], abs=0.03)
            assert face["label"] == manifest.labels[expected["probabilities"][index].argmax()]
            assert face["confidence"] == max(face["probabilities"].values())
            assert face["detection_score"] == pytest.approx(expected["detection_scores"][index], abs=0.01)
            assert face["agreement"] == pytest.approx(expected["agreement"][index], abs=0.03)
            assert face["uncertain"] == expected["uncertain"][index]
            assert face["reasons"] == [REASONS[place] for place in np.flatnonzero(expected["reasons"][index])]
    assert [len(faces) for faces, _ in found] == ([1, 1, 0, 1] if settings else [2, 1, 0, 1])


def test_local_mode_takes_over_a_running_camera_sends_nothing_and_outlives_a_reload(open_tab: Open) -> None:
    # The page is told of four cores; three are for WebAssembly.
    tab = open_tab(script="Object.defineProperty(navigator, 'hardwareConcurrency', { value: 4 });")
    tab.start_camera()
    tab.choose_local(True)
    tab.wait_until("document.getElementById('badge').textContent.includes('Loading the model')")
    sent = len(tab.sent)
    wait_for_models(tab)
    tab.page.context.set_offline(True)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.wait_until("document.querySelector('#badge[hidden]') && !document.querySelector('#faces.stale')")
    assert label_photo(tab).startswith("happiness")
    assert "3 threads" in tab.page.text_content("#runs")
    icon = "/page/icon.svg"  # which Chromium looks for again when the address changes
    assert [url for url in asked if not url.startswith("blob:") and not url.endswith(icon)] == []
    assert len(tab.sent) == sent
    assert tab.page.inner_text("#trust") == "Nothing leaves this tab"
    tab.page.context.set_offline(False)
    tab.page.click("#tab-live")
    tab.choose_local(False)
    tab.wait_for_results(2)
    assert tab.page.locator("[data-person]").count() == tab.page.locator("[data-person='1']").count() == 1
    tab.page.click("#stop")
    tab.choose_local(True)
    assert "local=1" in tab.page.url
    sent = len(tab.sent)
    for address in (tab.page.url.split("?")[0], tab.page.url.replace("local=1", "local=0")):
        tab.page.goto(address)
        tab.wait_until_ready()
        assert tab.page.is_checked("#local"), "a link does not switch it off"
    tab.start_camera()
    assert len(tab.sent) == sent
    tab.ignore_errors(icon)


def test_if_models_do_not_load_the_switch_goes_back_and_nothing_is_sent_without_a_click(open_tab: Open) -> None:
    tab = open_tab()
    tab.page.context.route("**/page/models/**", lambda route: route.abort())
    tab.start_camera()
    tab.choose_local(True)
    tab.page.wait_for_selector("#banner:not([hidden])")
    assert "Local mode is off" in tab.page.inner_text("#banner-text")
    assert not tab.page.is_checked("#local")
    sent = len(tab.sent)
    assert tab.page.get_attribute("#stage", "data-state") == "idle"
    tab.page.wait_for_timeout(500)
    assert len(tab.sent) == sent
    tab.page.context.unroute("**/page/models/**")
    tab.choose_local(True)
    wait_for_models(tab)
    tab.ignore_errors("/page/models/")


def test_the_static_page_labels_camera_and_photos_but_not_a_huge_one(open_tab: Open, tmp_path: Path) -> None:
    write_page(tmp_path / "people" / "mien", load_settings())
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with serving_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        tab = open_tab("people/mien/", at=f"http://127.0.0.1:{server.server_port}/")
        assert not tab.page.evaluate("crossOriginIsolated"), "no special headers"
        assert tab.page.is_checked("#local")
        assert tab.page.is_disabled("#local")
        wait_for_models(tab)
        tab.start_camera()
        assert "1 thread;" in tab.page.text_content("#runs")
        assert label_photo(tab).startswith("happiness")
        Image.new("1", (10_000, 6000)).save(tmp_path / "huge.png")
        tab.page.set_input_files("#files", tmp_path / "huge.png")
        wait_until_done(tab, 2)
        assert "limit" in tab.page.locator(".tile").last.inner_text()
        tab.page.click("#about")
        tab.page.click("#card")
        assert tab.page.inner_text("pre").startswith("# ")
        tab.ignore_errors("favicon.ico")  # which Chromium looks for beside a text
