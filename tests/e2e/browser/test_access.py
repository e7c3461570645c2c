"""Accessibility: axe-core on every view, light and dark; keyboard navigation; the model card."""

import re
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from mien.data.contract import Array
from tests.e2e.browser.conftest import Open
from tests.support import ROOT
from tests.support.browser import WAIT_MS
from tests.support.serving import Server

pytestmark = pytest.mark.timeout(240)
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PHONE = {"width": 360, "height": 740}
REFUSE = """() => {
  navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("", "NotAllowedError"); };
}"""


DISCONNECT = "document.getElementById('video').srcObject.getVideoTracks()[0].dispatchEvent(new Event('ended'))"
CAT = ROOT / "app/static/page/samples/cat.jpg"


def violations(page: Page) -> list[str]:
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


class States:
    """A page in one color scheme and size, and what axe finds in each state."""

    def __init__(self, open_tab: Open, path: str, colors: str, viewport: dict[str, int] | None) -> None:
        self.tab = open_tab(path, color_scheme=colors, **({"viewport": viewport} if viewport else {}))
        self.found: dict[str, list[str]] = {}
        self.check("first screen")

    def check(self, state: str, *clicks: str, wait: str | None = None) -> None:
        for selector in clicks:
            self.tab.page.click(selector, timeout=WAIT_MS)
        if wait:
            self.tab.page.wait_for_selector(wait, timeout=WAIT_MS)
        self.found[state] = violations(self.tab.page)

    def assert_clean(self) -> None:
        assert {state: rules for state, rules in self.found.items() if rules} == {}


in_both_schemes = pytest.mark.parametrize(
    ("colors", "viewport"), [("light", None), ("dark", PHONE)], ids=["desktop", "phone"]
)


@in_both_schemes
def test_axe_finds_no_violation_in_any_state_of_the_live_view(
    open_tab: Open, colors: str, viewport: dict[str, int] | None
) -> None:
    states = States(open_tab, "/", colors, viewport)
    page, check = states.tab.page, states.check
    page.evaluate(REFUSE)
    check("error", "#start", wait="[data-kind=error]")
    page.reload()
    states.tab.wait_until_ready()
    states.tab.start_camera()
    check("live")
    if viewport:
        check("more", "#more")
    check("settings", "#settings")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "settings"
    check("all expressions", ".face .more")
    if page.is_visible("#look"):
        check("attention", "#look", wait=".attention")
    check("recording", "#record")
    check("fullscreen", "#fullscreen", wait=".compact .face")
    check("summary", "#fullscreen", "#record", wait="#summary-people section")
    check("downloads", "#summary-files summary")
    page.click("#summary-close")
    check("paused", "#pause")
    check("stopped, with a recording that is not saved", "#stop", wait="#unsaved-open")
    page.click("#start")
    page.wait_for_selector("#stage[data-state=live]", timeout=WAIT_MS)
    page.evaluate(DISCONNECT)
    check("disconnected", wait="[data-state=lost]")
    if page.is_visible("#local"):
        check("local mode", "#local")
    states.assert_clean()


@in_both_schemes
def test_axe_finds_no_violation_in_any_state_of_the_photos(
    open_tab: Open, colors: str, viewport: dict[str, int] | None, tmp_path: Path
) -> None:
    (not_a_photo := tmp_path / "broken.jpg").write_text("not a photo")
    (not_a_video := tmp_path / "broken.mp4").write_text("not a video")
    states = States(open_tab, "/#photos", colors, viewport)
    page, check = states.tab.page, states.check
    page.set_input_files("#files", [ROOT / "samples/photos/astronaut.jpg", CAT, not_a_photo])
    page.wait_for_selector(".tile .error", timeout=WAIT_MS)
    check("photo", ".tile .open")
    check("zoomed photo", "#detail-larger")
    check("photo without a face", "#detail-after")
    page.keyboard.press("Escape")
    check("photos and a file that is not one")
    page.set_input_files("#files", not_a_video)
    check("video that does not play", wait="[data-state=unplayable]")
    check("cleared", "#tab-photos", "#clear")
    check("card", "#card", wait=".document h1")
    assert "|" not in page.inner_text(".document"), "tables are tables"
    states.assert_clean()
    states.tab.ignore_errors("status of 415")


# Of each expression, certain and not: a column of its timeline, and the outline of its swatch; and the ground of both.
DRAWN = """async () => {
  const [{ drawHistory }, { History }, { swatch }, { LABELS }] = await Promise.all(
    ["ui/timeline", "core/history", "ui/dom", "core/labels"].map((name) => import(`/page/${name}.js`)));
  const canvas = Object.assign(document.createElement("canvas"), { className: "timeline" });
  document.body.append(canvas);
  const draw = (label, uncertain) => {
    const history = new History();
    const rest = 0.3 / (LABELS.length - 1);
    const probabilities = Object.fromEntries(LABELS.map((name) => [name, name === label ? 0.7 : rest]));
    history.add({ label, uncertain, probabilities }, 0);
    drawHistory(canvas, history, { from: 0, to: 1000, threshold: 0 });
    const context = canvas.getContext("2d");
    const { data } = context.getImageData(50, 0, 1, canvas.height);
    const mark = document.body.appendChild(swatch(label));
    context.fillStyle = getComputedStyle(mark).boxShadow.split(" 0px")[0];
    mark.remove();
    context.clearRect(0, 0, 9, 9);
    context.fillRect(0, 0, 9, 9);
    return { label, uncertain, pixels: [...data], outline: [...context.getImageData(1, 1, 1, 1).data] };
  };
  const drawn = LABELS.flatMap((label) => [draw(label, false), draw(label, true)]);
  const ground = getComputedStyle(canvas).backgroundColor;
  canvas.remove();
  return { drawn, ground };
}"""
MIN_CONTRAST = 3.0  # of graphics, WCAG 1.4.11


def luminance(color: Array) -> float:
    """Relative luminance of sRGB, 0 to 1 (WCAG 2.2)."""
    linear = np.where(color <= 10, color / 255 / 12.92, ((color / 255 + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(color: Array, other: Array) -> float:
    dark, light = sorted((luminance(color), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def over(color: Array, ground: Array) -> Array:
    """Colors with opacity, 0 to 255 each, in front of an opaque one."""
    opacity = color[..., 3:] / 255
    return color[..., :3] * opacity + ground * (1 - opacity)


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_timelines_and_swatches_contrast_with_their_ground(open_tab: Open, colors: str) -> None:
    drawn = open_tab(color_scheme=colors).page.evaluate(DRAWN)
    ground = np.array(re.findall(r"[\d.]+", drawn["ground"]), float)
    assert {entry["uncertain"] for entry in drawn["drawn"]} == {True, False}
    for entry in drawn["drawn"]:
        *column, outline = over(np.array([*np.reshape(entry["pixels"], (-1, 4)), entry["outline"]], float), ground)
        edge = round(0.3 * len(column))
        line = max(column[edge - 1 : edge + 2], key=lambda color: contrast(color, ground))
        assert contrast(line, ground) >= MIN_CONTRAST, entry["label"]
        assert contrast(line, column[edge - 4]) >= MIN_CONTRAST, f"{entry['label']}, above its line"
        stripes = len(np.unique(np.round(column[edge + 3 :]), axis=0))
        assert (stripes > 1) == entry["uncertain"], "hatched"
        assert contrast(outline, ground) >= MIN_CONTRAST


def test_the_keyboard_reaches_everything_in_order(open_tab: Open) -> None:
    tab = open_tab()
    reached = []
    for _ in range(12):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    switch = ["local"] if tab.page.is_visible("#local") else []  # where ONNX Runtime Web has been fetched
    assert reached[: 4 + len(switch)] == ["Skip to the content", "tab-live", "tab-photos", *switch, "start"]
    assert {"choose", "sample-clip", "card", "API"} <= set(reached)
    tab.page.focus("#start")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".face-label:not(:empty)", timeout=WAIT_MS)
    assert tab.page.evaluate("document.activeElement.id") == "pause"
    tab.page.keyboard.press("Space")
    assert tab.page.get_attribute("#pause", "aria-pressed") == "true"


def test_at_400_percent_zoom_everything_has_room(open_tab: Open, tmp_path: Path) -> None:
    (photo := tmp_path / f"{'long' * 50}.jpg").write_bytes((ROOT / "samples/photos/astronaut.jpg").read_bytes())
    tab = open_tab(viewport={"width": 320, "height": 256})
    tab.start_camera()
    assert tab.box("#stage")["width"] > 280
    assert tab.box("#pause")["width"] > 24
    tab.page.click("#more")
    tab.page.click("#settings")
    assert tab.box("#settings-panel")["width"] > 280
    assert tab.box("#settings-panel")["y"] + tab.page.evaluate("scrollY") >= 0, "within reach"
    tab.page.keyboard.press("Escape")
    tab.page.click("#tab-photos")
    tab.page.set_input_files("#files", photo)
    tab.page.click(".tile .open", timeout=WAIT_MS)
    tab.page.locator("#detail-faces").scroll_into_view_if_needed()
    assert tab.page.evaluate("""() => {
      const { left, bottom } = document.getElementById("detail-faces").getBoundingClientRect();
      const there = document.elementFromPoint(left + 20, Math.min(bottom, innerHeight - 14) - 10);
      return Boolean(there.closest("#detail-faces"));
    }"""), "the long name does not cover it"


def test_screen_readers_announce_a_label_but_not_every_frame(open_tab: Open) -> None:
    tab = open_tab(
        script="""
        window.said = [];
        addEventListener('DOMContentLoaded', () => new MutationObserver(() =>
          window.said.push(document.getElementById('announce').textContent))
          .observe(document.getElementById('announce'), {childList: true, characterData: true, subtree: true}));
    """
    )
    tab.start_camera()
    tab.wait_until("window.said.some((text) => text.startsWith('Person 1: '))")
    before = len(tab.page.evaluate("window.said"))
    tab.page.wait_for_timeout(1000)
    assert len(tab.page.evaluate("window.said")) - before <= 1


def test_requests_of_the_api_description_pass_a_proxy_that_serves_it_below_a_path(open_tab: Open, site: Server) -> None:
    page = open_tab().page
    page.route(
        "**/mien/**", lambda route: route.fulfill(response=route.fetch(url=route.request.url.replace("/mien", "")))
    )
    page.goto(f"{site.url}/mien/docs", timeout=WAIT_MS)
    page.locator("#operations-models-models .opblock-summary").click(timeout=WAIT_MS)
    page.get_by_role("button", name="Try it out").click()
    with page.expect_response("**/v1/models") as response:
        page.get_by_role("button", name="Execute").click()
    assert response.value.url == f"{site.url}/mien/v1/models"
    assert response.value.ok
