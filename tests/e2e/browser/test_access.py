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


def violations(page: Page) -> list[str]:
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize(("colors", "viewport"), [("light", None), ("dark", PHONE)], ids=["desktop", "phone"])
def test_axe_finds_no_violation_in_any_state(open_tab: Open, colors: str, viewport: dict[str, int] | None) -> None:
    size = {"viewport": viewport} if viewport else {}
    tab = open_tab(color_scheme=colors, **size)
    page = tab.page
    found = {"first screen": violations(page)}

    def check(state: str, *clicks: str, wait: str | None = None) -> None:
        for selector in clicks:
            page.click(selector, timeout=WAIT_MS)
        if wait:
            page.wait_for_selector(wait, timeout=WAIT_MS)
        found[state] = violations(page)

    page.evaluate(REFUSE)
    check("error", "#start", wait="[data-kind=error]")
    page.reload()
    tab.wait_until_ready()
    tab.start_camera()
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
    page.click("#summary-delete")
    check("paused", "#pause")
    check("stopped", "#stop")
    check("no photos", "#tab-photos")
    page.set_input_files("#files", ROOT / "samples" / "photos" / "astronaut.jpg")
    check("photo", ".tile .open")
    page.keyboard.press("Escape")
    check("photos")
    check("cleared", "#clear")
    check("card", "#card", wait=".document h1")
    assert "|" not in page.inner_text(".document"), "tables are tables"
    assert {state: rules for state, rules in found.items() if rules} == {}


def test_the_keyboard_reaches_everything_in_order(open_tab: Open) -> None:
    tab = open_tab()
    reached = []
    for _ in range(11):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    switch = ["local"] if tab.page.is_visible("#local") else []  # where ONNX Runtime Web has been fetched
    assert reached[: 3 + len(switch)] == ["Skip to the content", "tab-live", *switch, "start"]
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
