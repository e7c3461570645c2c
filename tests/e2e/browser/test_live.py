"""Live view in a real browser: labels, controls, cameras, and recovery from errors."""

import json
import re
import wave
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import BrowserType, Page, Route
from playwright.sync_api import Error as PlaywrightError

from mien.app.service.keys import key_hash
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.scenes import SCENE, TWO, start_scene
from tests.support import ROOT
from tests.support.browser import ALLOWED, CAMERA, WAIT_MS, Tab, launch, serving
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
IN_VIEW = """(() => {
  const box = document.querySelector('%s').getBoundingClientRect();
  return box.width > 0 && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
})()"""
LEAVE = "dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))"
BADGE = "document.getElementById('badge')"
# Waits of the page take a tenth of their time.
HURRY = "{ const wait = setTimeout; window.setTimeout = (done, ms, ...given) => wait(done, ms / 10, ...given); }"
ANNOUNCED = """
window.announced = [];
addEventListener("DOMContentLoaded", () => {
  const element = document.getElementById("announce");
  new MutationObserver(() => announced.push(element.textContent)).observe(element, { childList: true });
});
"""


@pytest.fixture(scope="module")
def shared(open_shared: Open) -> Tab:
    """A page whose camera has started."""
    tab = open_shared(script=SCRIPT + ANNOUNCED)
    tab.start_camera()
    return tab


@pytest.fixture
def live(shared: Tab) -> Tab:
    """The shared page with its camera running."""
    state = shared.page.get_attribute("#stage", "data-state")
    if state == "paused":
        shared.page.click("#pause")
    elif state != "live":
        shared.start_camera()
    return shared


def title(page: Page) -> str:
    return page.inner_text("#state-title")


def wait_for_state(page: Page, state: str) -> None:
    page.wait_for_selector(f"#stage[data-state={state}]", timeout=WAIT_MS)


def go_live(page: Page) -> None:
    page.click("#start")
    wait_for_state(page, "live")


def test_the_label_of_the_service_is_shown_with_metrics_and_timeline(live: Tab, site: Server) -> None:
    (image,) = site.post(live.sent[0]).json()["images"]
    (face,) = json.loads(live.results[0])["faces"]
    assert face["label"] == image["faces"][0]["label"]
    assert face["probabilities"] == image["faces"][0]["probabilities"]
    assert face["label"] in live.page.inner_text(".face-label")
    live.wait_for_results(10)
    assert 1 <= live.most_in_flight <= 2
    assert json.loads(live.results[-1])["dropped"] == 0
    live.wait_until("parseFloat(document.getElementById('fps').textContent) > 0")
    assert live.page.inner_text("#latency").endswith((" ms", " s"))
    assert live.page.inner_text("#count") == "1"
    live.wait_until("announced.some((text) => text.startsWith('Person 1: '))")  # once for an unchanged face
    live.wait_until(f"document.querySelector('.timeline').ariaLabel.includes('{live.faces()[0]['label']} ')")
    model = live.page.evaluate("fetch('v1/models').then((response) => response.json())")["models"][0]
    shares = {round(100 * score["accuracy"]["value"]) for score in model["metrics"] if score["prior"] == model["prior"]}
    footer = re.search(r"(\d+)% right on", live.page.inner_text("#card"))
    assert int(footer[1]) in shares if footer else not shares


def test_boxes_follow_the_face_and_the_mirror(live: Tab) -> None:
    live.wait_for_results(3)
    live.page.click("#settings")
    drawn_at = []
    for mirrored in (False, True):
        live.page.set_checked("#mirror", mirrored)
        live.page.wait_for_timeout(100)
        drawn_at.append(live.page.evaluate(DRAWN_AT))
    live.page.click("#settings")
    box = live.faces()[0]["box"]
    assert drawn_at[0] == pytest.approx((box["x"] + box["width"] / 2) / 640, abs=0.12)
    assert drawn_at[1] == pytest.approx(1 - drawn_at[0], abs=0.12)


def test_fullscreen_shows_people_and_controls_which_hide_while_nobody_moves(live: Tab) -> None:
    page = live.page
    page.focus("#stop")
    page.keyboard.press("f")
    live.wait_until("document.fullscreenElement?.id === 'view'")
    page.wait_for_selector(".compact .face")
    for name in ("#stage", "#pause", "#settings", ".compact .face"):
        live.wait_until(IN_VIEW % name)
    assert page.is_hidden("#legend")
    live.wait_until("getComputedStyle(document.getElementById('controls')).opacity === '0'")
    page.mouse.move(300, 300)
    live.wait_until("getComputedStyle(document.getElementById('controls')).opacity === '1'")
    page.click("#fullscreen")
    live.wait_until("document.fullscreenElement === null")
    refuse = "Promise.reject(new TypeError('not allowed here'))"
    page.evaluate(f"() => {{ Element.prototype.requestFullscreen = () => {refuse}; }}")
    page.click("#fullscreen")
    live.wait_until(f"{BADGE}.textContent.includes('not allowed here')")


def test_the_sample_plays_from_memory_is_searched_paused_and_reported_when_it_breaks(open_tab: Open) -> None:
    tab = open_tab()
    tab.page.click("#sample-clip")
    wait_for_state(tab.page, "live")
    assert tab.page.evaluate("document.getElementById('video').currentSrc").startswith("blob:")
    tab.wait_until("!document.getElementById('seek').hidden")
    tab.page.fill("#seek", "5")
    tab.wait_until("document.getElementById('video').currentTime >= 5")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("Space")
    wait_for_state(tab.page, "paused")
    assert tab.page.get_attribute("#seek", "aria-valuetext").startswith("0:0")
    tab.page.keyboard.press("Space")
    wait_for_state(tab.page, "live")
    tab.page.evaluate("() => document.getElementById('video').dispatchEvent(new Event('error'))")
    wait_for_state(tab.page, "unplayable")
    assert tab.page.is_hidden("#seek")
    tab.page.context.route("**/clip.webm", lambda route: route.abort())
    tab.page.reload()
    tab.page.click("#sample-clip")
    wait_for_state(tab.page, "unplayable")
    tab.ignore_errors("ERR_FAILED")


@pytest.mark.parametrize("how", ["pause", "hidden", "photos"])
def test_nothing_is_sent_while_paused_or_hidden(live: Tab, how: str) -> None:
    page = live.page
    stop, resume = {
        "pause": (lambda: page.click("#pause"),) * 2,
        "hidden": tuple(lambda away=away: page.evaluate(f"window.away = {away}; {HIDE}") for away in ("true", "false")),
        "photos": (lambda: page.click("#tab-photos"), page.go_back),
    }[how]
    stop()
    live.wait_for(live.streams[-1].is_closed, "the stream is open")
    before = len(live.sent)
    page.wait_for_timeout(300)
    assert len(live.sent) == before
    resume()
    live.wait_for_results(2)


def test_a_camera_without_a_picture_is_reported_while_results_arrive(live: Tab) -> None:
    mute = """(muted) => {
      const [track] = document.getElementById("video").srcObject.getVideoTracks();
      Object.defineProperty(track, "muted", { value: muted, configurable: true });
      track.dispatchEvent(new Event(muted ? "mute" : "unmute"));
    }"""
    live.page.evaluate(mute, True)
    live.wait_for_results(3)
    live.wait_until(f"{BADGE}.textContent === 'The camera sends no picture'")
    live.page.evaluate(mute, False)
    live.wait_until(f"{BADGE}.hidden")


@pytest.mark.parametrize("act", ["document.getElementById('stop').click()", LEAVE], ids=["stop", "leave"])
def test_stopping_or_leaving_releases_the_camera(live: Tab, act: str) -> None:
    live.page.evaluate("() => { window.track = document.getElementById('video').srcObject.getVideoTracks()[0]; }")
    live.page.evaluate(f"() => {{ {act}; }}")
    assert live.page.evaluate("window.track.readyState") == "ended"
    assert title(live.page) == "Camera off", "also if Back shows this page again"


def test_the_page_reconnects_to_a_restarted_service(live: Tab, site: Server) -> None:
    def upgraded(route: Route) -> None:
        try:
            response = route.fetch()
        except PlaywrightError:
            route.abort()
        else:
            model, *others = response.json()["models"]
            route.fulfill(response=response, json={"models": [model | {"name": "another.model"}, *others]})

    live.page.route("**/v1/models", upgraded)
    site.stop()
    try:
        live.wait_until(f"{BADGE}.textContent.includes('lost')")
        assert live.page.evaluate(DRAWN_AT) is None
    finally:
        site.start()
    live.wait_until(f"{BADGE}.hidden")
    assert live.page.locator("[data-person]").count() == live.page.locator("[data-person='1']").count() == 1
    live.wait_until("document.getElementById('card').title === 'another.model'")
    live.page.unroute("**/v1/models")
    live.ignore_errors("ERR_FAILED", "ERR_CONNECTION_REFUSED", "WebSocket connection to", "503")


def test_a_service_that_was_not_ready_is_asked_again(open_tab: Open) -> None:
    tab = open_tab(script=HURRY)
    runs = tab.page.inner_text("#runs")
    for path in ("ready", "page/facts.json"):
        tab.page.route(f"**/{path}", lambda route: route.fulfill(status=503, json={}))
        tab.page.reload()
        tab.wait_for(lambda: any(tab.errors), "the page has not asked")
        assert tab.page.inner_text("#runs") == ""
        if path == "ready":
            tab.wait_until("document.getElementById('example-faces').textContent.includes('does not respond')")
        tab.page.unroute(f"**/{path}")
        tab.wait_until(f"document.getElementById('runs').textContent === {json.dumps(runs)}")
        tab.ignore_errors("status of 503")


def test_a_click_before_the_page_is_ready_is_not_lost(open_tab: Open) -> None:
    held: list[Route] = []
    tab = open_tab()
    tab.page.route("**/page/facts.json", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    tab.page.reload(wait_until="commit")
    tab.wait_for(lambda: held, "the page is not asked for")
    assert tab.page.evaluate("document.querySelectorAll('header[inert], main[inert]').length") == 2
    held[0].continue_()
    tab.start_camera()
    tab.page.click("#settings")
    assert not tab.page.is_visible("#camera"), "one camera needs no choice"


def test_settings_outlive_a_reload_and_can_be_reset(open_tab: Open) -> None:
    tab = open_tab("/?threshold=40")
    go_live(tab.page)
    tab.page.click("#settings")
    assert tab.page.inner_text("#threshold-value") == "40%", "as in the address"
    tab.page.uncheck("#mirror")
    tab.page.locator("#smoothing").fill("1")
    assert "smoothing=1" in tab.page.url
    tab.page.goto(tab.page.url.split("?")[0])
    tab.wait_until_ready()
    go_live(tab.page)
    tab.page.click("#settings")
    assert not tab.page.is_checked("#mirror")
    assert tab.page.inner_text("#smoothing-value") == "1.00 s"
    tab.page.click("#reset")
    assert tab.page.is_checked("#mirror")
    usual = tab.page.inner_text("#threshold-value")
    assert usual != "40%"
    tab = open_tab("/?threshold=abc")
    go_live(tab.page)
    assert tab.page.text_content("#threshold-value") == usual, "what is not a number is forgotten"


UNPLUG = """(id) => {
  const { mediaDevices } = navigator;
  const [list, open] = [mediaDevices.enumerateDevices.bind(mediaDevices), mediaDevices.getUserMedia.bind(mediaDevices)];
  const missing = () => window.unplugged;
  mediaDevices.enumerateDevices = async () => (await list()).filter(({ deviceId }) => deviceId !== missing());
  mediaDevices.getUserMedia = async (wanted) => {
    if (missing() && wanted.video.deviceId?.exact === missing()) throw new DOMException("", "OverconstrainedError");
    return open(wanted);
  };
  const [track] = document.getElementById("video").srcObject.getVideoTracks();
  window.unplugged = track.getSettings().deviceId;
  track.dispatchEvent(new Event("ended"));
  mediaDevices.dispatchEvent(new Event("devicechange"));
}"""
USED = "document.getElementById('video').srcObject.getVideoTracks()[0].getSettings().deviceId"


def test_no_other_camera_starts_than_the_chosen_one(open_tab: Open, browsers: BrowserType) -> None:
    with launch(browsers, f"{CAMERA}=device-count=2", ALLOWED) as two_cameras:
        tab = open_tab(inside=two_cameras)
        page = tab.page
        go_live(page)
        first = page.evaluate(USED)
        page.click("#settings")
        assert page.input_value("#camera") == first
        assert len(set(page.locator("#camera option").all_inner_texts())) == 2
        second = page.locator("#camera option:not([selected])").get_attribute("value")
        assert second not in {None, first}
        page.select_option("#camera", second)
        tab.wait_until(f"document.getElementById('stage').dataset.state === 'live' && {USED} === '{second}'")
        page.click("#stop")
        go_live(page)
        assert page.evaluate(USED) == second, "after a stop"
        page.reload()
        tab.wait_until_ready()
        go_live(page)
        assert page.evaluate(USED) == second, "after a reload"
        page.focus("#snapshot")
        page.evaluate(UNPLUG)
        wait_for_state(page, "lost")
        assert page.evaluate("document.activeElement.id") == "start", "the focus is not lost with the controls"
        page.click("#start")
        wait_for_state(page, "missing")
        page.evaluate(
            "() => { window.unplugged = null; navigator.mediaDevices.dispatchEvent(new Event('devicechange')); }"
        )
        page.wait_for_timeout(300)
        assert title(page) == "Your camera is not connected", "nothing starts without a click"
        assert page.inner_text("#start") == "Use another camera"
        go_live(page)


def test_a_video_that_does_not_play_is_reported_and_offers_no_second_try(open_tab: Open, tmp_path: Path) -> None:
    broken, sound_only = tmp_path / f"{'long' * 50}-broken.mp4", tmp_path / "sound-broken.mp4"
    broken.write_bytes(b"not a video")
    with wave.open(str(sound_only), "wb") as sound:
        sound.setparams((1, 1, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(8000))
    for path in (sound_only, broken):
        tab = open_tab("/#photos", viewport={"width": 360, "height": 740})
        tab.page.set_input_files("#files", path)
        wait_for_state(tab.page, "unplayable")
        assert "broken.mp4" in tab.page.inner_text("#state-text")
        assert tab.box("#state")["width"] <= tab.box("#stage")["width"], "a long name is wrapped"
        assert tab.page.inner_text("#start") == "Start camera"
        assert not tab.page.evaluate("Boolean(document.getElementById('video').srcObject)")


def test_one_of_several_videos_plays_while_a_photo_chosen_with_them_is_labeled(open_tab: Open, tmp_path: Path) -> None:
    clips = [tmp_path / name for name in ("first.webm", "second.webm", "third.webm")]
    for clip in clips:
        clip.write_bytes((ROOT / "app/static/page/samples/clip.webm").read_bytes())
    tab, photo = open_tab("/#photos"), ROOT / "samples/photos/astronaut.jpg"
    tab.page.set_input_files("#files", photo)
    tab.page.click(".tile .open", timeout=WAIT_MS)
    tab.page.set_input_files("#files", [photo, *clips])
    assert tab.page.is_hidden("#detail"), "it would lie over the video"
    wait_for_state(tab.page, "live")
    assert tab.page.inner_text("#badge") == "One video plays at a time: first.webm. Not opened: 2 others"
    tab.page.wait_for_selector(".face-label:not(:empty)", timeout=WAIT_MS)
    tab.page.click("#tab-photos")
    tab.wait_until("document.getElementById('progress').textContent === '2 photos done'")


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (360, 640)])
def test_the_whole_picture_of_a_camera_is_shown_and_sent(open_tab: Open, width: int, height: int) -> None:
    script = f"""navigator.mediaDevices.getUserMedia = async ({{ video }}) => {{
      window.wanted = [video.width.ideal, video.height.ideal];
      const canvas = Object.assign(document.createElement("canvas"), {{ width: {width}, height: {height} }});
      setInterval(() => canvas.getContext("2d").fillRect(Math.random(), 0, 9, 9), 50);
      return canvas.captureStream();
    }};"""
    tab = open_tab(script=script)
    go_live(tab.page)
    tab.wait_for_results(1)
    assert tab.page.evaluate("window.wanted") == [1280, 720]
    assert Image.open(BytesIO(tab.sent[0])).size == ((640, 360) if width > height else (360, 640))
    stage = tab.box("#stage")
    assert stage["width"] / stage["height"] == pytest.approx(width / height, rel=0.01), "no black bands"


def test_a_browser_that_hides_pixels_from_pages_is_reported(open_tab: Open) -> None:
    noise = """
    const read = CanvasRenderingContext2D.prototype.getImageData;
    CanvasRenderingContext2D.prototype.getImageData = (x, y, width, height) => {
      const picture = new ImageData(width, height);
      picture.data.forEach((_, place) => (picture.data[place] = 256 * Math.random()));
      return picture;
    };
    window.allow = () => (CanvasRenderingContext2D.prototype.getImageData = read);
    """
    tab = open_tab(script=noise)
    tab.page.click("#start")
    wait_for_state(tab.page, "hidden")
    assert "fingerprinting" in tab.page.inner_text("#state-text")
    tab.page.evaluate("() => void window.allow()")
    go_live(tab.page)


def test_frames_that_are_not_labeled_do_not_stay_in_memory(open_tab: Open) -> None:
    count = """
    window.pictures = 0;
    const create = window.createImageBitmap, { close } = ImageBitmap.prototype;
    window.createImageBitmap = (...given) => { window.pictures++; return create(...given); };
    ImageBitmap.prototype.close = function () { window.pictures--; close.call(this); };
    """
    tab = start_scene(open_tab(script=count + SCENE), *TWO)
    tab.page.evaluate(
        "() => { window.problem = {detail: 'the quota is used up'}; window.until = window.socket.frame + 20; }"
    )
    tab.wait_until("window.socket.frame > window.until")
    assert tab.page.inner_text("#badge").endswith("not labeled: the quota is used up")
    assert tab.page.evaluate("window.pictures") < 10


def test_every_camera_error_has_its_own_message(open_tab: Open) -> None:
    tab = open_tab()
    states = {"NotAllowedError": "refused", "NotFoundError": "none", "NotReadableError": "busy", "TypeError": "failed"}
    titles = set()
    for name, state in states.items():
        error = f"Promise.reject(new DOMException('as a test', '{name}'))"
        tab.page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = () => {error}; }}")
        tab.page.click("#start")
        wait_for_state(tab.page, state)
        titles.add(title(tab.page))
        assert title(tab.page) in tab.page.inner_text("#announce")
        assert tab.page.inner_text("#start") == "Try again"
        assert tab.page.evaluate("document.activeElement.id") == "start"
    assert len(titles) == len(states)


def test_an_insecure_page_explains_why_the_camera_is_unavailable(open_tab: Open, site: Server) -> None:
    tab = open_tab(at=f"http://mien.test:{site.port}")
    tab.page.click("#start")
    wait_for_state(tab.page, "insecure")
    assert "HTTPS" in tab.page.inner_text("#state-text")
    tab.ignore_errors("Cross-Origin-Opener-Policy")


def test_a_busy_service_and_a_missing_one_are_reported(open_tab: Open) -> None:
    # a stream rejected before it opens: the page gets no reason, but asks whether the service is there
    script = (
        "window.WebSocket = class extends WebSocket { constructor(url) { super(url.replace('stream', 'nothing')); } };"
    )
    tab = open_tab(script=script + HURRY)
    tab.page.click("#start")
    tab.wait_until(f"{BADGE}.textContent.includes('no free streams')")
    assert "proxy" in tab.page.inner_text("#badge")
    tab.page.click("#stop")
    tab.page.context.route("**/v1/models", lambda route: route.abort())
    tab.page.click("#start")
    tab.wait_until(f"{BADGE}.textContent.includes('does not respond')")
    tab.page.context.route("**/v1/models", lambda route: route.fulfill(status=401, json={}))
    tab.wait_until(f"{BADGE}.textContent.includes('API key')")
    tab.ignore_errors("WebSocket connection to", "ERR_FAILED", "status of 401")


def test_a_protected_service_asks_for_the_api_key(
    open_tab: Open, artifact: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("guarded")
    with serving(folder, artifact, api_key_sha256=key_hash("sesame")) as guarded:
        tab = open_tab(at=guarded.url, http_credentials={"username": "anyone", "password": "sesame"})
        tab.start_camera()
        tab.page.click("#stop")
