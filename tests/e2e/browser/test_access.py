"""Accessibility: axe-core in every state of the page, light on a desktop or dark on a phone; keyboard navigation."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.e2e.browser.conftest import Open, Tab
from tests.support import ROOT

pytestmark = pytest.mark.timeout(240)
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
DISCONNECT = "document.getElementById('video').srcObject.getVideoTracks()[0].dispatchEvent(new Event('ended'))"


def check(tab: Tab, state: str, *clicks: str, wait: str = "body") -> None:
    """Click, wait for an element, and look for violations in the state that the page is in then."""
    for selector in clicks:
        tab.page.click(selector)
    tab.page.wait_for_selector(wait)
    found = Axe().run(tab.page, options=RULES)
    assert found.violations_count == 0, f"{state}: {found.generate_report()}"


def test_axe_finds_no_violation_in_any_state_of_the_live_view_and_the_keyboard_starts_it(open_tab: Open) -> None:
    tab = open_tab(color_scheme="light")
    page = tab.page
    check(tab, "first screen")
    reached = []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert reached == ["Skip to the content", "tab-live", "tab-photos", "settings", "start"]
    page.keyboard.press("Enter")
    page.wait_for_selector(".face-label:not(:empty)")
    assert page.evaluate("document.activeElement.id") == "pause"
    check(tab, "settings", "#settings")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "settings"
    check(tab, "all expressions", ".face-head")
    check(tab, "recording, and a round", "#record", "#round", wait="#round-card")
    page.click("#record")
    page.click("#round")
    check(tab, "fullscreen", "#fullscreen", wait=":fullscreen .face")
    page.click("#fullscreen")
    check(tab, "stopped", "#stop", wait="[data-state=idle]")
    page.click("#start")
    page.wait_for_selector("#stage[data-state=live]")
    page.evaluate(DISCONNECT)
    if page.get_attribute("#local-field", "hidden") is None:
        tab.choose_local(True)
    check(tab, "disconnected, in local mode", wait="[data-state=lost]")
    check(tab, "about", "#about", wait="#about-panel:popover-open")
    page.keyboard.press("Escape")
    if page.is_checked("#local"):
        tab.choose_local(False)
    page.context.route("**/ready", lambda route: route.abort())
    page.reload()
    check(tab, "no service", wait="#banner:not([hidden])")
    tab.ignore_errors("ERR_FAILED")


def test_axe_finds_no_violation_in_any_state_of_the_photos_on_a_phone(open_tab: Open, tmp_path: Path) -> None:
    (not_a_photo := tmp_path / "broken.jpg").write_text("not a photo")
    (not_a_video := tmp_path / "broken.mp4").write_text("not a video")
    tab = open_tab("/#photos", color_scheme="dark", viewport={"width": 360, "height": 740})
    page, samples = tab.page, ROOT / "samples/photos"
    check(tab, "first screen")
    page.set_input_files("#files", [samples / "astronaut.jpg", samples / "chelsea.jpg", not_a_photo])
    page.wait_for_selector(".tile .error")
    page.wait_for_selector(":nth-match(.tile .open, 2)")  # else the first one may be the last photo
    check(tab, "zoomed photo", ".tile .open", "#detail-larger")
    check(tab, "photo without a face", "#detail-after")
    page.keyboard.press("Escape")
    page.set_input_files("#files", not_a_video)
    check(tab, "video that does not play", wait="[data-state=unplayable]")
    check(tab, "photos and a file that is not one", "#tab-photos")
    tab.ignore_errors("status of 415")
