"""Local mode: the page labels in the browser as the service does, and sends nothing."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest
from PIL import Image
from playwright.sync_api import BrowserType, Route

from mien.app.service.page import has_runtime
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.test_photos import wait_until_done
from tests.support import ROOT, folder_from_environment
from tests.support.browser import WAIT_MS, Tab, launch, serving
from tests.support.serving import Server

needs_runtime = pytest.mark.skipif(not has_runtime(), reason="ONNX Runtime Web is not here: `make runtime` fetches it")
pytestmark = [pytest.mark.timeout(900), needs_runtime]
SAMPLES = sorted((ROOT / "samples" / "photos").glob("*.jpg"))
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
MAX_BOX_PX = 2.0
MIN_AGREEMENT = 0.99
TIE = 0.03  # of two probabilities, which differ by rounding between the browser and the service


@pytest.fixture(scope="module")
def same(browsers: BrowserType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with the detector and the graph that the browser runs."""
    with serving(tmp_path_factory.mktemp("same"), detector="builtin", detect_rotated=True, precision="int8") as running:
        yield running


def local(tab: Tab) -> None:
    """Switch to local mode and wait for the models."""
    tab.choose_local(True)
    wait_for_models(tab)


def wait_for_models(tab: Tab) -> None:
    # they load slowly on a busy machine, and with a GPU that the CPU imitates
    tab.page.wait_for_selector("#place:text-matches('^Ready')", state="attached", timeout=8 * WAIT_MS)


def labeled(tab: Tab, photos: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Faces by file name, as the page's labeler finds them in the browser."""
    return {photo.name: tab.page.evaluate(FACES, base64.b64encode(photo.read_bytes()).decode()) for photo in photos}


FACES = """async (text) => {
  if (!window.labeler) {
    const { LocalLabeler } = await import('/page/local/labeler.js');
    const base = new URL('/page/', location.href).href;
    window.labeler = new LocalLabeler(await (await fetch('/page/facts.json')).json(), base);
  }
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const { images: [image] } = await window.labeler.label(new Blob([bytes]));
  return image.faces;
}"""


def runs(tab: Tab) -> str:
    """What labels the faces, as the page says."""
    return tab.page.text_content("#runs") or ""


def label_photo(tab: Tab) -> str:
    """Label a sample on the tab of photos. Returns the text of its tile."""
    tab.page.click("#tab-photos")
    tab.page.set_input_files("#files", SAMPLES[0])
    wait_until_done(tab, 1)
    return tab.page.inner_text(".tile .labels")


def furthest_px(face: dict[str, Any], other: dict[str, Any]) -> float:
    return max(abs(face["box"][side] - other["box"][side]) for side in ("x", "y", "width", "height"))


def agreement(site: Server, found: dict[str, list[dict[str, Any]]], photos: list[Path]) -> tuple[int, int, float]:
    """Numbers of faces, and of those with the same label or a tie; the largest distance of their boxes, pixels."""
    faces, same_label, largest = 0, 0, 0.0
    for photo in photos:
        expected = site.post(photo.read_bytes()).json()["images"][0]["faces"]
        assert len(found[photo.name]) == len(expected), photo.name
        for face in expected:
            nearest = min(found[photo.name], key=lambda one: furthest_px(face, one))
            faces += 1
            same_label += face["probabilities"][nearest["label"]] >= face["confidence"] - TIE
            largest = max(largest, furthest_px(face, nearest))
    assert largest <= MAX_BOX_PX
    return faces, same_label, largest


def test_the_browser_labels_rotated_samples_as_the_service_does(open_tab: Open, same: Server, tmp_path: Path) -> None:
    photos = list(SAMPLES)
    upright = cv2.imread(str(SAMPLES[0]))
    for turn in (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE):
        photos.append(tmp_path / f"turned-{turn}.png")
        cv2.imwrite(str(photos[-1]), cv2.rotate(upright, turn))
    photos.append(tmp_path / "tiny.png")
    cv2.imwrite(str(photos[-1]), cv2.resize(upright[:300, 80:380], (60, 60), interpolation=cv2.INTER_AREA))
    faces, same_label, _ = agreement(same, labeled(open_tab(at=same.url), photos), photos)
    assert same_label == faces >= len(photos) - 1  # one sample shows a cat


@pytest.mark.soak
def test_labels_agree_with_the_service_on_photos_of_people(open_tab: Open, same: Server) -> None:
    photos = sorted(folder_from_environment("MIEN_PHOTOS_DIR").glob("*.jpg"))
    faces, same_label, largest = agreement(same, labeled(open_tab(at=same.url), photos), photos)
    print(f"{faces} faces, {same_label} with the same label, boxes within {largest:.2f} px")
    assert same_label >= MIN_AGREEMENT * faces


@pytest.mark.soak
def test_webgpu_labels_as_the_service_does(open_tab: Open, browsers: BrowserType, tmp_path: Path) -> None:
    def pretend(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace("isFallbackAdapter", "isNotAsked"))

    photo = tmp_path / "face.png"
    cv2.imwrite(str(photo), cv2.imread(str(SAMPLES[0]))[:300, 80:380])
    with serving(tmp_path, detector="builtin", precision="fp32") as same, launch(browsers, *SOFTWARE_GPU) as imitating:
        tab = open_tab("/card", inside=imitating, at=same.url)
        tab.page.context.route("**/local/worker.js", pretend)
        tab.page.goto(same.url)
        tab.wait_until_ready()
        local(tab)
        assert "WebGPU" in runs(tab)
        assert agreement(same, labeled(tab, [photo]), [photo])[:2] == (1, 1)


def test_nothing_leaves_the_tab(open_tab: Open) -> None:
    tab = open_tab(script=FOUR_CORES)
    local(tab)
    tab.page.context.set_offline(True)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.start_camera()
    assert tab.page.locator("[data-person]").count() == 1
    label_with_three_threads(tab)
    icon = "/page/icon.svg"  # which Chromium looks for again when the address changes
    assert [url for url in asked if not url.startswith("blob:") and not url.endswith(icon)] == []
    assert tab.sent == []
    tab.ignore_errors(icon)
    assert tab.page.inner_text("#trust") == "Nothing leaves this tab"


def test_switching_while_the_camera_runs_keeps_the_people_and_outlives_a_reload(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.choose_local(True)
    tab.wait_until("document.getElementById('badge').textContent.includes('Loading the models')")
    sent = len(tab.sent)
    wait_for_models(tab)
    tab.page.wait_for_selector("[data-person='1'] .face-label:not(:empty)", timeout=WAIT_MS)
    assert len(tab.sent) == sent
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


def test_if_models_do_not_load_the_switch_goes_back_and_nothing_is_sent_without_a_click(open_tab: Open) -> None:
    tab = open_tab()
    tab.page.context.route("**/page/models/**", lambda route: route.abort())
    tab.start_camera()
    tab.choose_local(True)
    tab.page.wait_for_selector("#banner:not([hidden])", timeout=WAIT_MS)
    assert "Local mode is off" in tab.page.inner_text("#banner-text")
    assert not tab.page.is_checked("#local")
    sent = len(tab.sent)
    assert tab.page.get_attribute("#stage", "data-state") == "idle"
    tab.page.wait_for_timeout(500)
    assert len(tab.sent) == sent
    tab.page.context.unroute("**/page/models/**")
    local(tab)
    tab.ignore_errors("/page/models/")


def test_a_huge_photo_is_refused_in_local_mode(open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab("/#photos")
    local(tab)
    Image.new("1", (10_000, 6000)).save(tmp_path / "huge.png")
    tab.page.set_input_files("#files", tmp_path / "huge.png")
    wait_until_done(tab, 1)
    assert "limit" in tab.page.inner_text(".tile")


# The page is told of four cores; three are for WebAssembly.
FOUR_CORES = "Object.defineProperty(navigator, 'hardwareConcurrency', { value: 4 });"


def label_with_three_threads(tab: Tab) -> None:
    assert tab.page.evaluate("crossOriginIsolated")
    assert label_photo(tab).startswith("happiness")
    assert "3 threads" in runs(tab)


def test_between_searches_a_moving_face_is_followed_as_a_search_would_find_it(open_tab: Open) -> None:
    searched, followed, searches = open_tab().page.evaluate(FOLLOWED)
    assert searches < len(followed), "not every frame is searched"
    for (one, *_), (other, *_) in zip(searched, followed, strict=True):  # the largest face
        width = one["box"]["width"]
        assert furthest_px(one, other) < 0.2 * width
        for name, point in one["landmarks"].items():
            assert abs(point["x"] - other["landmarks"][name]["x"]) < 0.1 * width, "else the crop differs"
        assert one["label"] == other["label"]
    for one, other in zip(searched[-1], followed[-1], strict=True):  # the label may be that of a moment ago
        assert (one["box"], one["landmarks"]) == (other["box"], other["landmarks"]), "after a jump, all is searched"
        assert other["descriptor"] == 192, "people are told apart by their look"


# Faces of 7 frames in which a photo moves and then jumps, as searched and as followed, and the number of searches.
FOLLOWED = """async () => {
  const facts = await (await fetch('/page/facts.json')).json();
  const { LocalLabeler } = await import('/page/local/labeler.js');
  const photo = await createImageBitmap(await (await fetch('/page/samples/photo.jpg')).blob());
  const labeler = new LocalLabeler(facts, new URL('/page/', location.href).href);
  await labeler.open();
  const canvas = Object.assign(document.createElement('canvas'), { width: 640, height: 480 });
  const context = canvas.getContext('2d');
  const label = async (place, stream) => {
    context.clearRect(0, 0, 640, 480);
    context.drawImage(photo, place < 6 ? 6 * place : 300, 4 * place, 340, 340);
    const source = await createImageBitmap(canvas);
    const { faces, timings_ms } = await labeler.ask({ source, ...stream }, [source]);
    const known = faces.map((face) => ({ ...face, descriptor: face.descriptor?.length }));
    return { faces: known, detect_ms: timings_ms.detect };
  };
  const [searched, followed] = [[], []];
  for (let place = 0; place < 7; place++) searched.push(await label(place, {}));
  for (let place = 0; place < 7; place++) followed.push(await label(place, { stream: 'test' }));
  const slowest_ms = Math.max(...followed.map(({ detect_ms }) => detect_ms));
  const searches = followed.filter(({ detect_ms }) => detect_ms > slowest_ms / 2).length;
  return [...[searched, followed].map((results) => results.map(({ faces }) => faces)), searches];
}"""
