"""Local mode: the page labels in the browser as the service does, and sends nothing."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest
from PIL import Image
from playwright.sync_api import BrowserType, Route

from mien.app.service.routes.page import has_runtime
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.test_photos import wait_until_done
from tests.support import ROOT
from tests.support.browser import WAIT_MS, Tab, any_artifact, launch, serving
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
    chosen = {"detector": "builtin", "detect_rotated": True}
    folder = tmp_path_factory.mktemp("same")
    artifact = any_artifact(folder)
    precision = "int8" if (artifact / "model.int8.onnx").is_file() else "fp32"
    with serving(folder, artifact, precision=precision, **chosen) as running:
        yield running


@pytest.fixture(scope="module")
def same_in_fp32(browsers: BrowserType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with the graph that the browser runs on a GPU."""
    folder = tmp_path_factory.mktemp("fp32")
    with serving(folder, any_artifact(folder), detector="builtin", precision="fp32") as running:
        yield running


def local(tab: Tab) -> None:
    """Switch to local mode and wait for the models."""
    tab.page.check("#local")
    wait_for_models(tab)


def wait_for_models(tab: Tab) -> None:
    for _ in range(8):  # models load slowly on a busy machine, and with a GPU that the CPU imitates
        try:
            return tab.wait_until("document.getElementById('place').textContent.startsWith('Ready')")
        except AssertionError:
            assert not tab.errors
    raise AssertionError("the models were not loaded")


def labeled(tab: Tab, photos: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Faces by file name, as the page offers them for download."""
    tab.page.click("#tab-photos")
    for start in range(0, len(photos), 8):
        tab.page.set_input_files("#files", photos[start : start + 8])
        wait_until_done(tab, min(start + 8, len(photos)))
    answers = json.loads(tab.download("#json")[1])
    return {entry["file"]: entry["images"][0]["faces"] for entry in answers}


def furthest_px(face: dict[str, Any], other: dict[str, Any]) -> float:
    return max(abs(face["box"][side] - other["box"][side]) for side in ("x", "y", "width", "height"))


def agreement(site: Server, found: dict[str, list[dict[str, Any]]], photos: list[Path]) -> tuple[int, int, int, float]:
    """Numbers of faces, of those at the same place, and with the same label or a tie; largest distance, pixels."""
    faces, same_place, same_label, largest = 0, 0, 0, 0.0
    for photo in photos:
        expected = site.post(photo.read_bytes()).json()["images"][0]["faces"]
        assert len(found[photo.name]) == len(expected), photo.name
        for face in expected:
            nearest = min(found[photo.name], key=lambda one: furthest_px(face, one))
            faces += 1
            same_place += furthest_px(face, nearest) <= MAX_BOX_PX
            same_label += face["probabilities"][nearest["label"]] >= face["confidence"] - TIE
            largest = max(largest, furthest_px(face, nearest))
    return faces, same_place, same_label, largest


def test_the_browser_labels_rotated_samples_as_the_service_does(open_tab: Open, same: Server, tmp_path: Path) -> None:
    photos = list(SAMPLES)
    upright = cv2.imread(str(SAMPLES[0]))
    for turn in (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE):
        photos.append(tmp_path / f"turned-{turn}.png")
        cv2.imwrite(str(photos[-1]), cv2.rotate(upright, turn))
    photos.append(tmp_path / "tiny.png")
    cv2.imwrite(str(photos[-1]), cv2.resize(upright[:300, 80:380], (60, 60), interpolation=cv2.INTER_AREA))
    tab = open_tab(at=same.url)
    local(tab)
    faces, same_place, same_label, _ = agreement(same, labeled(tab, photos), photos)
    assert faces == same_place == same_label
    assert faces >= len(photos) - 1  # one sample shows a cat


@pytest.mark.soak
def test_labels_agree_with_the_service_on_photos_of_people(open_tab: Open, same: Server) -> None:
    folder = os.environ.get("MIEN_PHOTOS_DIR")
    if not folder:
        pytest.skip("MIEN_PHOTOS_DIR is not set")
    photos = sorted(Path(folder).glob("*.jpg"))
    tab = open_tab(at=same.url)
    local(tab)
    faces, same_place, same_label, largest = agreement(same, labeled(tab, photos), photos)
    print(f"{faces} faces, {same_label} with the same label, boxes within {largest:.2f} px")
    assert same_place == faces
    assert same_label >= MIN_AGREEMENT * faces


def test_a_gpu_that_the_cpu_imitates_is_not_used(open_tab: Open, browsers: BrowserType) -> None:
    with launch(browsers, *SOFTWARE_GPU) as imitating:
        tab = open_tab(inside=imitating)
        assert tab.page.evaluate("async () => (await navigator.gpu.requestAdapter()).info.isFallbackAdapter")
        local(tab)
        assert "WebAssembly" in tab.page.inner_text("#runs")


@pytest.mark.soak
def test_webgpu_labels_as_the_service_does(
    open_tab: Open, browsers: BrowserType, tmp_path: Path, same_in_fp32: Server
) -> None:
    def pretend(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace("isFallbackAdapter", "isNotAsked"))

    photo = tmp_path / "face.png"
    cv2.imwrite(str(photo), cv2.imread(str(SAMPLES[0]))[:300, 80:380])
    with launch(browsers, *SOFTWARE_GPU) as imitating:
        tab = open_tab("/card", inside=imitating, at=same_in_fp32.url)
        tab.page.context.route("**/local/worker.js", pretend)
        tab.page.goto(same_in_fp32.url)
        tab.wait_until_ready()
        local(tab)
        assert "WebGPU" in tab.page.inner_text("#runs")
        faces, same_place, same_label, _ = agreement(same_in_fp32, labeled(tab, [photo]), [photo])
    assert faces == same_place == same_label == 1


def test_nothing_leaves_the_tab(open_tab: Open) -> None:
    tab = open_tab(script=FOUR_CORES)
    local(tab)
    tab.page.context.set_offline(True)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.start_camera()
    tab.wait_until("parseFloat(document.getElementById('fps').textContent) > 0")
    assert tab.page.inner_text("#count") == "1"
    label_with_three_threads(tab)
    icon = "/page/icon.svg"  # which Chromium looks for again when the address changes
    assert [url for url in asked if not url.startswith("blob:") and not url.endswith(icon)] == []
    assert tab.sent == []
    tab.ignore_errors(icon)
    assert "Nothing leaves this tab" in tab.page.inner_text(".notice summary")


def test_local_mode_stays_on_after_a_reload_and_in_a_link(open_tab: Open) -> None:
    tab = open_tab()
    tab.page.check("#local")
    assert "local=1" in tab.page.url
    for address in (tab.page.url, tab.page.url.split("?")[0], tab.page.url.replace("local=1", "local=0")):
        tab.page.goto(address)
        tab.wait_until_ready()
        assert tab.page.is_checked("#local"), address
    announced = tab.page.inner_text("#place")
    tab.start_camera()
    loaded = tab.page.evaluate("document.getElementById('loading').max")
    assert f"Loads {loaded / 1e6:.1f} MB once" in announced
    assert tab.sent == []
    tab.page.uncheck("#local")
    tab.page.reload()
    tab.wait_until_ready()
    assert not tab.page.is_checked("#local")


def test_switching_while_the_camera_runs_keeps_the_people(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.wait_for_results(2)
    tab.page.check("#local")
    tab.wait_until("document.getElementById('badge').textContent.includes('Loading the models')")
    tab.wait_until("document.getElementById('loading').max > 5e6")
    assert tab.streams[-1].is_closed()
    sent = len(tab.sent)
    wait_for_models(tab)
    tab.page.wait_for_selector("[data-person='1'] .face-label:not(:empty)", timeout=WAIT_MS)
    assert len(tab.sent) == sent
    tab.page.uncheck("#local")
    tab.wait_for_results(2)
    assert tab.page.locator("[data-person]").count() == tab.page.locator("[data-person='1']").count() == 1


def test_models_that_do_not_load_are_tried_again_and_unreadable_photos_are_explained(
    open_tab: Open, tmp_path: Path
) -> None:
    tab = open_tab("/#photos")
    tab.page.context.route("**/page/models/**", lambda route: route.abort())
    tab.page.check("#local")
    tab.page.set_input_files("#files", SAMPLES[0])
    tab.page.wait_for_selector(".tile .error", timeout=WAIT_MS)
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.set_input_files("#files", SAMPLES[0])
    tab.page.wait_for_selector(".tile .error", timeout=WAIT_MS)
    assert tab.page.inner_text("#place").startswith("Not loaded"), "also if the switch was on before"
    assert tab.page.is_hidden("#loading")
    tab.page.context.unroute("**/page/models/**")
    tab.page.click("text=Try again")
    wait_until_done(tab, 1)
    tab.page.wait_for_selector(".tile img", timeout=WAIT_MS)
    tab.ignore_errors("/page/models/")
    words = {"scan.tif": "TIFF", "damaged.jpg": "damaged", "empty.jpg": "empty", "text.jpg": "not an image"}
    words["huge.png"] = "limit"
    cv2.imwrite(str(tmp_path / "scan.tif"), cv2.imread(str(SAMPLES[0])))
    Image.new("1", (10_000, 6000)).save(tmp_path / "huge.png")
    (tmp_path / "damaged.jpg").write_bytes(SAMPLES[0].read_bytes()[:2000])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello")
    tab.page.set_input_files("#files", [tmp_path / name for name in words])
    wait_until_done(tab, 1 + len(words))
    for place, word in enumerate(words.values()):
        assert word in tab.page.locator(".tile").nth(1 + place).inner_text()
    assert tab.page.locator("text=Try again").count() == 0


def test_a_browser_without_webassembly_is_named_as_the_cause(open_tab: Open, browsers: BrowserType) -> None:
    with launch(browsers, "--js-flags=--jitless") as limited:
        tab = open_tab(inside=limited)
        tab.page.check("#local")
        tab.wait_until("document.getElementById('place').textContent.startsWith('Not loaded')")
        assert "switched off WebAssembly" in tab.page.inner_text("#place")


# The page is told of four cores; three are for WebAssembly.
FOUR_CORES = "Object.defineProperty(navigator, 'hardwareConcurrency', { value: 4 });"


def label_with_three_threads(tab: Tab) -> None:
    assert tab.page.evaluate("crossOriginIsolated")
    if not tab.page.is_checked("#local"):
        tab.page.check("#local")
    (face,) = labeled(tab, SAMPLES[:1])[SAMPLES[0].name]
    assert face["label"] == "happiness"
    assert "3 threads)" in tab.page.inner_text("#runs")


def test_the_page_works_offline_after_one_visit_and_fetches_models_once(open_tab: Open, site: Server) -> None:
    def fetched() -> int:
        return site.log.read_text().count("GET /page/models/")

    earlier = fetched()
    tab = open_tab("/?local=1", service_workers="allow")
    tab.wait_until("Boolean(navigator.serviceWorker.controller)")
    wait_for_models(tab)  # which are loaded although nothing has been labeled
    tab.page.wait_for_timeout(500)
    assert (once := fetched()) > earlier
    tab.page.reload()
    tab.wait_until_ready()
    labeled(tab, SAMPLES[:1])  # which opens the models
    assert fetched() == once
    tab.page.context.set_offline(True)
    tab.page.reload()
    tab.wait_until_ready()
    assert tab.page.is_checked("#local")
    (face,) = labeled(tab, SAMPLES[:1])[SAMPLES[0].name]
    assert face["label"] == "happiness"
    tab.ignore_errors("ERR_INTERNET_DISCONNECTED", "Failed to load resource")


def test_offline_models_are_missed_by_name_and_load_later_without_room_for_a_cache(open_tab: Open) -> None:
    tab = open_tab(service_workers="allow")
    tab.wait_until("Boolean(navigator.serviceWorker.controller)")
    tab.page.wait_for_timeout(500)
    tab.page.context.set_offline(True)
    tab.page.check("#local")
    tab.wait_until("document.getElementById('place').textContent.includes('you are offline, and the models')")
    tab.ignore_errors("ERR_INTERNET_DISCONNECTED", "Failed to load resource")
    tab.page.uncheck("#local")
    tab.page.context.set_offline(False)
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": tab.page.evaluate("origin"), "quotaSize": 1})
    local(tab)


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
        assert other["descriptor"] == 192


# Faces of 7 frames in which a photo moves and then jumps, as searched and as followed, and the number of searches.
FOLLOWED = """async () => {
  const facts = await (await fetch('/page/facts.json')).json();
  const { LocalLabeler } = await import('/page/local/labeler.js');
  const photo = await createImageBitmap(await (await fetch('/page/samples/photo.jpg')).blob());
  const labeler = new LocalLabeler(facts, { base: new URL('/page/', location.href).href });
  await labeler.open();
  const canvas = Object.assign(document.createElement('canvas'), { width: 640, height: 480 });
  const shot = async (place) => {
    const context = canvas.getContext('2d');
    context.clearRect(0, 0, 640, 480);
    context.drawImage(photo, place < 6 ? 6 * place : 300, 4 * place, 340, 340);
    return createImageBitmap(canvas);
  };
  const results = [[], []];
  const full = [];
  for (const [row, stream] of results.entries()) {
    for (let place = 0; place < 7; place++) {
      const bitmap = await shot(place);
      const options = stream && row ? { source: bitmap, stream: 'test' } : { source: bitmap };
      const { faces, timings_ms: { detect } } = await labeler.ask(options, [bitmap]);
      results[row].push(faces.map((face) => ({ ...face, descriptor: face.descriptor?.length })));
      if (row) full.push(detect);
    }
  }
  const slow = Math.max(...full) / 2;
  return [...results, full.filter((ms) => ms > slow).length];
}"""
