"""Accessibility: axe-core on every view, light and dark; keyboard navigation; the model card."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

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
    if viewport:
        page.click("#more")
    check("settings", "#settings")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "settings"
    page.click(".face .more")
    if page.is_visible("#look"):
        page.click("#look")
        page.wait_for_selector(".attention", timeout=WAIT_MS)
    check("all expressions, attention, and recording", "#record")
    check("fullscreen", "#fullscreen", wait=".compact .face")
    page.click("#fullscreen")
    page.click("#record")
    page.wait_for_selector("#summary-people section", timeout=WAIT_MS)
    check("summary", "#summary-files summary")
    page.click("#summary-close")
    check("stopped, with a recording that is not saved", "#stop", wait="#unsaved-open")
    page.click("#start")
    page.wait_for_selector("#stage[data-state=live]", timeout=WAIT_MS)
    page.evaluate(DISCONNECT)
    if page.is_visible("#local"):
        page.click("#local")
    check("disconnected, in local mode", wait="[data-state=lost]")
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
    page.wait_for_selector(":nth-match(.tile .open, 2)", timeout=WAIT_MS)  # else the first one may be the last photo
    check("zoomed photo", ".tile .open", "#detail-larger")
    check("photo without a face", "#detail-after")
    page.keyboard.press("Escape")
    page.set_input_files("#files", not_a_video)
    check("video that does not play", wait="[data-state=unplayable]")
    check("photos and a file that is not one", "#tab-photos")
    check("cleared", "#clear")
    check("card", "#card", wait=".document h1")
    assert "|" not in page.inner_text(".document"), "tables are tables"
    states.assert_clean()
    states.tab.ignore_errors("status of 415")


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


def test_at_400_percent_zoom_the_stage_controls_and_settings_have_room(open_tab: Open) -> None:
    tab = open_tab(viewport={"width": 320, "height": 256})
    tab.start_camera()
    assert tab.box("#stage")["width"] > 280
    assert tab.box("#pause")["width"] > 24
    tab.page.click("#more")
    tab.page.click("#settings")
    assert tab.box("#settings-panel")["width"] > 280


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
