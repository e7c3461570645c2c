"""Live view in a real browser: all states, the right label, and recovery from errors."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import BrowserType, Page

from mien.app.service.keys import key_hash
from tests.browser import ALLOWED, CAMERA, WAIT_MS, launch, serving
from tests.e2e.browser.conftest import Open
from tests.serving import Server

pytestmark = pytest.mark.timeout(240)

# Records the times of the first result and of the first label shown.
CLOCK = """
window.clock = {};
const Plain = window.WebSocket;
window.WebSocket = class extends Plain {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", () => { window.clock.result ??= performance.now(); });
  }
};
new MutationObserver(() => {
  const label = document.querySelector(".face-label");
  if (label?.textContent) window.clock.label ??= performance.now();
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
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


def title(page: Page) -> str:
    return page.inner_text("#state-title")


def wait_for_state(page: Page, state: str) -> None:
    page.wait_for_selector(f"#stage[data-state={state}]", timeout=WAIT_MS)


def test_the_right_label_is_shown_within_a_second_of_the_first_result(open_tab: Open, site: Server) -> None:
    tab = open_tab(script=CLOCK)
    assert title(tab.page) == "Label expressions live"
    tab.start_camera()
    clock = tab.page.evaluate("window.clock")
    assert 0 <= clock["label"] - clock["result"] < 1000
    (image,) = site.ask(tab.sent[0])["images"]
    assert len(image["faces"]) == 1, "the frame shows one face"
    (face,) = json.loads(tab.results[0])["faces"]
    assert face["label"] == image["faces"][0]["label"]
    assert face["probabilities"] == image["faces"][0]["probabilities"]
    shown = tab.page.inner_text(".face-label")
    assert face["label"] in shown
    assert tab.page.locator(".face").first.locator(".bars li").count() == 7


def test_at_most_two_frames_are_in_flight(open_tab: Open) -> None:
    tab = open_tab()
    order: list[str] = []
    tab.page.on("websocket", lambda stream: stream.on("framesent", lambda _: order.append("sent")))
    tab.page.on("websocket", lambda stream: stream.on("framereceived", lambda _: order.append("received")))
    tab.start_camera()
    tab.wait_for_results(20)
    waiting, most = 0, 0
    for event in order:
        waiting += 1 if event == "sent" else -1
        most = max(most, waiting)
    assert 1 <= most <= 2
    assert json.loads(tab.results[-1])["dropped"] == 0


def test_boxes_follow_the_face_and_the_mirror(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.wait_for_results(3)
    assert tab.page.is_checked("#mirror")
    mirrored = tab.page.evaluate(DRAWN_AT)
    tab.page.click("#settings")
    tab.page.uncheck("#mirror")
    tab.page.wait_for_timeout(200)
    plain = tab.page.evaluate(DRAWN_AT)
    box = tab.faces()[0]["box"]
    assert plain == pytest.approx((box["x"] + box["width"] / 2) / 640, abs=0.12)
    assert mirrored == pytest.approx(1 - plain, abs=0.12)


def test_metrics_and_timeline_are_shown(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.wait_for_results(5)
    tab.wait_until("parseFloat(document.getElementById('fps').textContent) > 0")
    assert tab.page.inner_text("#latency").endswith((" ms", " s"))
    assert tab.page.inner_text("#count") == "1"
    label = tab.faces()[0]["label"]
    summary = tab.page.get_attribute(".timeline", "aria-label") or ""
    assert summary.startswith("Last 60 seconds: ")
    tab.wait_until(f"document.querySelector('.timeline').ariaLabel.includes('{label} ')")


def test_pausing_sends_nothing_and_stopping_releases_the_camera(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.page.click("#pause")
    assert tab.page.inner_text("#badge") == "Paused: nothing is sent"
    tab.page.wait_for_timeout(300)
    before = len(tab.sent)
    tab.page.wait_for_timeout(1000)
    assert len(tab.sent) == before
    tab.page.click("#pause")
    tab.wait_for_results(2)
    track = "() => window.track.readyState"
    tab.page.evaluate("() => { window.track = document.getElementById('video').srcObject.getVideoTracks()[0]; }")
    assert tab.page.evaluate(track) == "live"
    tab.page.click("#stop")
    assert tab.page.evaluate(track) == "ended"
    assert title(tab.page) == "Camera off"


def test_a_hidden_tab_sends_nothing_and_resumes_when_visible(open_tab: Open) -> None:
    script = "window.away = false; Object.defineProperty(document, 'hidden', {get: () => window.away});"
    tab = open_tab(script=script)
    tab.start_camera()
    tab.page.evaluate(f"window.away = true; {HIDE}")
    tab.page.wait_for_timeout(300)
    assert tab.streams[-1].is_closed()
    before = len(tab.sent)
    tab.page.wait_for_timeout(1000)
    assert len(tab.sent) == before
    tab.page.evaluate(f"window.away = false; {HIDE}")
    tab.wait_for_results(3)
    assert len(tab.streams) == 2


def test_switching_to_photos_and_back_keeps_the_live_view_working(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.page.click("#tab-photos")
    tab.page.wait_for_timeout(300)
    assert tab.streams[-1].is_closed()
    tab.page.keyboard.press("ArrowLeft")
    tab.wait_for_results(3)
    assert tab.page.is_visible("#panel-live")


def test_the_page_reconnects_to_a_restarted_service(open_tab: Open, site: Server) -> None:
    tab = open_tab()
    tab.start_camera()
    site.stop()
    try:
        tab.wait_until("document.getElementById('badge').textContent.includes('lost')")
        assert tab.page.evaluate(DRAWN_AT) is None
    finally:
        site.start()
    tab.wait_until("document.getElementById('badge').hidden")
    assert tab.page.locator("[data-person]").count() == tab.page.locator("[data-person='1']").count() == 1
    tab.ignore_errors("ERR_CONNECTION_REFUSED", "WebSocket connection to", "503")


@pytest.mark.parametrize("size", [(360, 740), (844, 390), (1920, 1080)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_resized_window_keeps_everything_visible(open_tab: Open, size: tuple[int, int]) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.page.set_viewport_size({"width": size[0], "height": size[1]})
    tab.wait_for_results(2)
    tab.page.wait_for_timeout(200)
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing overflows sideways"
    fits = "(() => { const c = document.getElementById('overlay'); return Math.abs(c.width - c.clientWidth) <= 1; })()"
    assert tab.page.evaluate(fits)
    box = tab.faces()[0]["box"]
    aspect = tab.page.evaluate(
        "(() => { const c = document.getElementById('overlay'); return [c.clientWidth, c.clientHeight]; })()"
    )
    width = min(aspect[0], aspect[1] * 4 / 3)
    center = (aspect[0] - width) / 2 + width * (1 - (box["x"] + box["width"] / 2) / 640)
    assert tab.page.evaluate(DRAWN_AT) == pytest.approx(center / aspect[0], abs=0.12)


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
        page.click("#start")
        wait_for_state(page, "live")
        first = page.evaluate(USED)
        page.click("#settings")
        second = page.locator("#camera option:not([selected])").get_attribute("value")
        assert second not in {None, first}
        page.select_option("#camera", second)
        tab.wait_until(f"document.getElementById('stage').dataset.state === 'live' && {USED} === '{second}'")
        page.click("#stop")
        page.click("#start")
        wait_for_state(page, "live")
        assert page.evaluate(USED) == second, "after a stop"
        page.reload()
        tab.wait_until("!document.querySelector('[inert]')")
        page.click("#start")
        wait_for_state(page, "live")
        assert page.evaluate(USED) == second, "after a reload"
        page.evaluate(UNPLUG)
        wait_for_state(page, "lost")
        page.wait_for_timeout(1000)
        assert title(page) == "Camera disconnected"
        page.click("#start")
        wait_for_state(page, "missing")
        page.evaluate(
            "() => { window.unplugged = null; navigator.mediaDevices.dispatchEvent(new Event('devicechange')); }"
        )
        page.wait_for_timeout(500)
        assert title(page) == "Your camera is not connected", "nothing starts without a click"
        assert page.inner_text("#start") == "Use another camera"
        page.click("#start")
        wait_for_state(page, "live")


def test_a_video_that_does_not_play_offers_no_second_try(open_tab: Open, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video")
    tab = open_tab("/#photos")
    tab.page.set_input_files("#files", broken)
    wait_for_state(tab.page, "unplayable")
    assert tab.page.inner_text("#start") == "Start camera"
    assert not tab.page.evaluate("Boolean(document.getElementById('video').srcObject)")


def test_a_blocked_camera_is_reported(open_tab: Open, browsers: BrowserType) -> None:
    with launch(browsers, CAMERA) as refusing:
        tab = open_tab(inside=refusing)
        tab.page.click("#start")
        wait_for_state(tab.page, "refused")
        assert title(tab.page) == "Camera access is blocked"
        assert tab.page.inner_text("#start") == "Try again"
        assert tab.page.evaluate("document.activeElement.id") == "start", "focus stays on the button to go on with"
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_timeout(500)
        assert tab.page.evaluate("document.activeElement.id") == "start"
        tab.page.set_viewport_size({"width": 360, "height": 740})
        stage, button = tab.box("#stage"), tab.box("#start")
        assert button["y"] + button["height"] < stage["y"] + stage["height"], "the button is not cut off"


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("NotFoundError", "none", "No camera found"),
        ("NotReadableError", "busy", "The camera is in use"),
        ("TypeError", "failed", "The camera did not start"),
    ],
)
def test_every_camera_error_has_its_own_message(open_tab: Open, name: str, state: str, words: str) -> None:
    fail = f"navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('as a test', '{name}'));"
    tab = open_tab(script=fail)
    tab.page.click("#start")
    wait_for_state(tab.page, state)
    assert title(tab.page) == words
    assert words in tab.page.inner_text("#announce")


def test_an_insecure_page_explains_why_the_camera_is_unavailable(
    open_tab: Open, browsers: BrowserType, site: Server
) -> None:
    with launch(browsers, "--host-resolver-rules=MAP mien.test 127.0.0.1") as plain:
        tab = open_tab(inside=plain, at=f"http://mien.test:{site.port}")
        tab.page.click("#start")
        wait_for_state(tab.page, "insecure")
        assert "HTTPS" in tab.page.inner_text("#state-text")
        tab.ignore_errors("Cross-Origin-Opener-Policy")


def test_a_busy_service_is_reported(open_tab: Open) -> None:
    # a stream rejected before it opens: the page gets no reason, but finds the service healthy
    script = (
        "window.WebSocket = class extends WebSocket { constructor(url) { super(url.replace('stream', 'nothing')); } };"
    )
    tab = open_tab(script=script)
    tab.page.click("#start")
    tab.wait_until("document.getElementById('badge').textContent.includes('no free streams')")
    tab.ignore_errors("WebSocket connection to")


def test_a_protected_service_asks_for_the_api_key(open_tab: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("guarded"), api_key_sha256=key_hash("sesame")) as guarded:
        tab = open_tab(at=guarded.url, http_credentials={"username": "anyone", "password": "sesame"})
        tab.start_camera()
        tab.wait_for_results(2)
        tab.page.click("#stop")
