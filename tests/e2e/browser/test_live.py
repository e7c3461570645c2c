"""Live view in a real browser: labels, controls, cameras, and recovery from errors."""

import csv
import io
import json
from functools import partial
from math import inf
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import BrowserType, Route

from mien.data.contract import LABELS, decode
from mien.data.contract.labels import COLORS
from mien.models.manifest import artifact_dir, load_artifact
from tests.e2e.browser.conftest import ALLOWED, CAMERA, Open, launch
from tests.e2e.browser.scenes import TWO, Scene, person
from tests.support.serving import Server

pytestmark = pytest.mark.timeout(240)

SCRIPT = "window.away = false; Object.defineProperty(document, 'hidden', {get: () => window.away});"
HIDE = "document.dispatchEvent(new Event('visibilitychange'))"
# Mean column of what is drawn over the picture, 0 to 1; null where nothing is drawn.
DRAWN_AT = """() => {
  const canvas = document.getElementById('overlay');
  const {data, width, height} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let sum = 0, count = 0;
  for (let y = 0; y < height; y += 2) for (let x = 0; x < width; x += 2)
    if (data[4 * (y * width + x) + 3] > 0) { sum += x; count++; }
  return count ? sum / count / width : null;
}"""
LEAVE = "dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))"
BADGE = "document.getElementById('badge')"
# Waits of the page take a tenth of their time.
HURRY = "{ const wait = setTimeout; window.setTimeout = (done, ms, ...given) => wait(done, ms / 10, ...given); }"


@pytest.fixture
def scene(open_tab: Open) -> Scene:
    """A page whose stream the test plays, with two people in view."""
    tab: Scene = open_tab(kind=Scene)
    tab.play()
    return tab


def test_a_camera_is_labeled_as_by_the_service_until_it_is_paused_hidden_stopped_or_left(
    open_tab: Open, site: Server
) -> None:
    tab = open_tab(script=SCRIPT)
    page, click = tab.page, "document.getElementById('{}').click()"
    tab.start_camera()
    (image,) = site.post(tab.sent[0]).json()["images"]
    (face,) = json.loads(tab.results[0])["faces"]
    assert face["label"] == image["faces"][0]["label"]
    assert face["probabilities"] == pytest.approx(image["faces"][0]["probabilities"], abs=0.01)  # found at another size
    assert face["label"] in page.inner_text(".face-label")
    tab.wait_for_results(10)
    assert json.loads(tab.results[-1])["dropped"] == 0
    page.click(".face-head")
    tab.wait_until(f"document.querySelector('.timeline').ariaLabel?.includes('{face['label']} ')")
    for stop, resume in (
        (click.format("pause"),) * 2,
        (f"window.away = true; {HIDE}", f"window.away = false; {HIDE}"),
        (click.format("tab-photos"), click.format("tab-live")),
    ):
        page.evaluate(stop)
        tab.wait_for(tab.streams[-1].is_closed, "the stream is open")
        before = len(tab.sent)
        page.wait_for_timeout(300)
        assert len(tab.sent) == before
        page.evaluate(resume)
        tab.wait_for_results(2)
    for act in (click.format("stop"), LEAVE):
        page.evaluate("() => { window.track = document.getElementById('video').srcObject.getVideoTracks()[0]; }")
        page.evaluate(f"() => {{ {act}; }}")
        assert page.evaluate("window.track.readyState") == "ended"
        assert page.inner_text("#state-title") == "Camera off", "also if Back shows this page again"
        tab.start()


def test_boxes_follow_the_face_and_the_mirror_and_labels_the_threshold(scene: Scene) -> None:
    page = scene.page
    scene.people = [person(60, 100, neutral=0.6)]
    scene.pass_until("document.querySelector('[data-person=\"2\"].away')")
    tint = page.evaluate("document.getElementById('stage').style.getPropertyValue('--tint')")
    assert tint == f"rgb({' '.join(map(str, COLORS['neutral']))})", "of a single person's label"
    page.click("#settings")
    for value, label in ((10, "neutral 60%"), (70, "neutral? 60%")):
        page.locator("#threshold").fill(str(value))
        scene.pass_until(f"document.querySelector('.face-label').textContent === '{label}'")
    for is_paused in (False, True):
        for mirrored, center in ((False, 120 / 640), (True, 520 / 640)):
            page.set_checked("#mirror", mirrored)
            if not is_paused:
                scene.pass_ms(100)
            assert page.evaluate(DRAWN_AT) == pytest.approx(center, abs=0.08), is_paused
        page.evaluate("document.getElementById('pause').click()")


def test_a_service_that_was_not_ready_is_asked_again_and_settings_outlive_a_reload(open_tab: Open) -> None:
    tab = open_tab("/?threshold=40", script=HURRY)
    tab.start()
    tab.page.click("#settings")
    assert tab.page.inner_text("#threshold-value") == "40%", "as in the address"
    tab.page.uncheck("#mirror")
    tab.page.route("**/ready", lambda route: route.fulfill(status=503, json={}))
    tab.page.reload()
    tab.wait_until("document.getElementById('banner-text').textContent.includes('does not respond')")
    assert tab.page.text_content("#runs") == ""
    tab.page.unroute("**/ready")
    tab.wait_until("document.getElementById('runs').textContent.startsWith('It runs in ')")
    assert tab.page.is_hidden("#banner")
    tab.start()
    tab.page.click("#settings")
    assert not tab.page.is_checked("#mirror")
    usual = round(100 * load_artifact(artifact_dir("fast")).confidence_threshold)
    tab.page.locator("#threshold").fill(str(usual))
    assert tab.page.inner_text("#threshold-value") == f"{usual}%, as the model"
    assert "threshold" not in tab.page.url
    tab.ignore_errors("status of 503")


UNPLUG = """() => {
  const { mediaDevices } = navigator;
  const [open, [track]] = [mediaDevices.getUserMedia, document.getElementById("video").srcObject.getVideoTracks()];
  const { deviceId } = track.getSettings();
  mediaDevices.getUserMedia = async (wanted) => {
    if (wanted.video.deviceId?.exact === deviceId) throw new DOMException("", "OverconstrainedError");
    return open.call(mediaDevices, wanted);
  };
  track.dispatchEvent(new Event("ended"));
}"""
USED = "document.getElementById('video').srcObject.getVideoTracks()[0].getSettings().deviceId"


def test_no_other_camera_starts_than_the_chosen_one(open_tab: Open, browsers: BrowserType) -> None:
    with launch(browsers, f"{CAMERA}=device-count=2", ALLOWED) as two_cameras:
        tab = open_tab(inside=two_cameras)
        page = tab.page
        tab.start()
        page.click("#settings")
        assert page.input_value("#camera") == page.evaluate(USED)
        second = page.locator("#camera option:not([selected])").get_attribute("value")
        page.select_option("#camera", second)
        tab.wait_until(f"document.getElementById('stage').dataset.state === 'live' && {USED} === '{second}'")
        page.reload()
        tab.wait_until_ready()
        tab.start()
        assert page.evaluate(USED) == second, "after a reload"
        assert "camera" not in page.url, "an address that is shared names no camera"
        page.evaluate(UNPLUG)
        page.wait_for_selector("#stage[data-state=lost]")
        tab.start("missing")
        page.wait_for_timeout(300)
        assert page.inner_text("#start") == "Use another camera", "no other one starts without a click"
        tab.start()


def test_frames_have_the_shape_of_an_upright_camera_and_do_not_stay_in_memory_if_they_are_not_labeled(
    open_tab: Open,
) -> None:
    scene = open_tab(kind=partial(Scene, camera_px=(720, 960)))
    scene.play()
    assert Image.open(io.BytesIO(scene.sent[0])).size == (480, 640)
    scene.error = {"detail": "the quota is used up"}
    scene.pass_until(f"{BADGE}.textContent.endsWith('not labeled: the quota is used up')")


# Some browsers hide the pixels of a canvas from pages.
HIDE_PIXELS = """() => {
  CanvasRenderingContext2D.prototype.getImageData = (x, y, width, height) =>
    new ImageData(new Uint8ClampedArray(4 * width * height).fill(20), width, height);
}"""


def test_every_camera_error_has_its_own_message_and_a_question_without_an_answer_a_way_out(
    open_tab: Open, site: Server
) -> None:
    tab, answer = open_tab(script=HURRY), "() => {{ navigator.mediaDevices.getUserMedia = () => {}; }}"
    page = tab.page
    page.evaluate(HIDE_PIXELS)
    tab.start("hidden")
    states = {"NotAllowedError": "refused", "NotFoundError": "none", "NotReadableError": "busy", "TypeError": "failed"}
    for name, state in states.items():
        page.evaluate(answer.format(f"Promise.reject(new DOMException('as a test', '{name}'))"))
        tab.start(state)
        assert page.inner_text("#state-title") in page.inner_text("#announce")
        assert page.evaluate("document.activeElement.id") == "start"
    page.evaluate(answer.format("new Promise(() => {})"))
    tab.start("asking")
    tab.wait_until("document.getElementById('state-text').textContent.includes('address bar')")
    assert page.is_visible("#choose")
    page.click("#cancel")
    assert page.inner_text("#start") == "Start camera"
    page.goto(f"http://mien.test:{site.port}")
    tab.wait_until_ready()
    tab.start("insecure")
    tab.ignore_errors("Cross-Origin-Opener-Policy")


def test_a_busy_service_and_a_missing_one_are_reported(open_tab: Open) -> None:
    # a stream rejected before it opens: the page gets no reason, but asks whether the service is there
    stream = (
        "window.WebSocket = class extends WebSocket { constructor(url) { super(url.replace('stream', 'none')); } };"
    )
    tab = open_tab(script=stream + HURRY)
    tab.start()
    tab.wait_until(f"{BADGE}.textContent.includes('no free streams')")
    tab.page.context.route("**/v1/models", lambda route: route.abort())
    tab.wait_until(f"{BADGE}.textContent.includes('does not respond')")
    tab.page.context.route("**/v1/models", lambda route: route.fulfill(status=401, json={}))
    tab.wait_until(f"{BADGE}.textContent.includes('API key')")
    tab.ignore_errors("WebSocket connection to", "ERR_FAILED", "status of 401")


def test_a_click_before_the_page_is_ready_is_remembered_and_one_script_is_loaded(open_tab: Open, site: Server) -> None:
    tab = open_tab("/page/card.txt")
    asked: list[str] = []

    def slowly(route: Route) -> None:
        asked.append(route.request.url)
        tab.page.click("#start", no_wait_after=True)
        route.continue_()

    tab.page.route("**/page/page.js*", slowly)
    tab.page.goto(site.url, wait_until="commit")
    tab.page.wait_for_selector("#stage[data-state=live]")
    scripts = tab.page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name.split('?')[0])")
    assert ([name for name in scripts if name.endswith(".js")], len(asked)) == ([f"{site.url}/page/page.js"], 1)
    tab.ignore_errors("favicon.ico")


def test_a_recording_is_downloaded_when_it_ends_and_kept_nowhere(scene: Scene, tmp_path: Path) -> None:
    scene.page.click("#record")
    assert scene.page.inner_text(".trust") == "Recording, saved when you stop"
    for _ in range(15):
        scene.pass_ms(100)
    files: dict[str, Path] = {}
    scene.page.on("download", lambda file: files.update({Path(file.suggested_filename).suffix: Path(file.path())}))
    scene.page.click("#record")
    scene.wait_for(lambda: len(files) == 2, "two files")
    rows = list(csv.DictReader(io.StringIO(files.pop(".csv").read_text())))
    assert {(row["person"], row["label"]) for row in rows} == {("1", "happiness"), ("2", "anger")}
    assert sum(float(rows[0][f"p_{label}"]) for label in LABELS) == pytest.approx(1, abs=0.01)
    (video,) = files.values()
    capture, frames = cv2.VideoCapture(str(video)), 0
    while (read := capture.read())[0]:
        frames += 1
        picture = read[1]
    assert frames > 5
    assert picture.shape == (720, 960, 3)
    assert (np.abs(picture.astype(int) - COLORS["happiness"][::-1]).max(axis=2) < 40).sum() > 300, "the box of person 1"
    assert scene.page.inner_text(".trust") != "Recording, saved when you stop"


def test_a_snapshot_equals_the_picture_and_your_minute_shows_the_expressions_seen(scene: Scene) -> None:
    picture = decode(scene.download("#snapshot")[1]).astype(int)
    assert picture.shape == (720, 960, 3)
    _, columns = np.nonzero(np.abs(picture - COLORS["happiness"]).max(axis=2) < 30)
    assert columns.min() > 480, "the camera is mirrored, and so is the snapshot"
    scene.people = [person(60, 100, happiness=0.88), TWO[1]]
    for _ in range(3):
        scene.pass_ms(500)
    collect = "CanvasRenderingContext2D.prototype.fillText = (text) => window.texts.push(text)"
    scene.page.evaluate(f"() => {{ window.texts = []; {collect}; }}")
    name, content = scene.download("#minute")
    assert sum(text.startswith("90%, ") for text in scene.page.evaluate("window.texts")) == 2, "the strongest moments"
    picture = decode(content).astype(int)
    assert (name, picture.shape) == ("mien-minute.png", (630, 1200, 3))
    for label, seen in (("happiness", True), ("anger", True), ("surprise", False)):
        assert ((np.abs(picture - COLORS[label]).max(axis=2) < 5).sum() > 1000) == seen, label


def test_a_round_asks_for_six_expressions_and_shows_how_close_each_came(scene: Scene) -> None:
    third = person(220, 340, sadness=0.9)
    scene.people = [*TWO, third]
    scene.pass_until("document.querySelector('[data-person=\"3\"]')")
    scene.page.click("#round")
    asked = set()
    for turn in range(6):
        scene.pass_ms(1000)
        asked.add(scene.page.inner_text("#round-title"))
        if turn == 5:
            scene.people = [TWO[1], third]  # who does not play
        for _ in range(4):
            scene.pass_ms(1000)
    scene.pass_ms(50)
    assert asked == {f"Show me {label}" for label in LABELS if label != "neutral"}
    assert scene.page.inner_text("#round-title") == "How close you came"
    lines = scene.page.inner_text("#round-lines").splitlines()
    assert {"happiness: 90% and 2%", "anger: 2% and 90%", "sadness: 2% and 2%"} <= set(lines)
    scene.page.click("#round-close")
    assert scene.page.is_hidden("#round-card")


def test_a_card_names_its_label_first_and_cards_keep_their_order_and_numbers_over_a_pause(scene: Scene) -> None:
    assert scene.page.eval_on_selector("[data-person='1']", "card => card.clientHeight") == pytest.approx(74, abs=4)
    scene.page.locator(".face-head").first.click()
    scene.people = [person(60, 100, happiness=0.46, sadness=0.47), TWO[1]]
    for _ in range(4):
        scene.pass_ms(500)
    assert scene.page.inner_text("[data-person='1'] .face-label").startswith("happiness? 4")
    rows = "rows => rows.map(row => row.offsetTop)"
    tops = scene.page.eval_on_selector_all("[data-person='1'] .bars li", rows)
    assert LABELS[np.argmin(tops)] == "happiness", "although sadness is a little more probable"
    assert "Person 1: uncertain (happiness" in scene.page.inner_text("#announce")
    scene.page.click("#pause")
    scene.people = [person(400, 100, sadness=0.9)]  # the second person
    scene.page.click("#pause")
    scene.pass_until("document.querySelector('[data-person=\"1\"].away')")
    assert "sadness" in scene.page.inner_text("[data-person='2'] .face-label")
    assert [card.get_attribute("data-person") for card in scene.page.locator("#faces > li").all()] == ["1", "2"]


IS_STALE = "document.getElementById('faces').classList.contains('stale')"


def test_old_results_fade_and_are_gone_before_they_are_on_another_person_and_a_lost_stream_is_opened_again(
    scene: Scene,
) -> None:
    scene.delay_ms = inf
    for passed, stale, drawn in ((650, False, True), (100, True, True), (700, True, True), (100, True, False)):
        scene.pass_ms(passed)
        state = [scene.page.evaluate(IS_STALE), scene.page.evaluate(DRAWN_AT) is not None]
        assert state == [stale, drawn], "cards do not look live while nothing arrives"
        assert (scene.page.text_content("#badge") == "Waiting for the service") == (not drawn)
        assert scene.page.locator(".face-label").first.is_visible() == drawn
    scene.delay_ms = 0
    scene.stream.close()
    scene.pass_until(f"{BADGE}.textContent.includes('lost')")
    scene.pass_until(f"{BADGE}.hidden && !{IS_STALE}")
    assert scene.page.evaluate(DRAWN_AT) is not None
    numbers = scene.page.eval_on_selector_all("[data-person]", "cards => cards.map((card) => card.dataset.person)")
    assert numbers == ["1", "2"]


def test_on_a_slow_link_the_frame_that_was_labeled_is_shown(scene: Scene) -> None:
    shows_frame = """(() => {
      const canvas = document.getElementById('overlay');
      return canvas.getContext('2d').getImageData(canvas.width / 2, canvas.height - 4, 1, 1).data[3] === 255;
    })()"""
    assert not scene.page.evaluate(shows_frame), "the video, with boxes over it"
    scene.delay_ms = 1200
    scene.pass_until(shows_frame)
    for step in range(16):
        if step == 10:
            scene.delay_ms = 4000
        scene.pass_ms(400)
        assert scene.page.evaluate(shows_frame)
        assert scene.page.is_hidden("#badge"), "a slow result is not an old one"
    scene.delay_ms = 0
    scene.pass_until(f"!{shows_frame}")
