"""Controls of the live view: fullscreen, and the choice among several cameras."""

import pytest
from playwright.sync_api import BrowserType, Route

from tests.browser import ALLOWED, CAMERA, launch
from tests.e2e.browser.conftest import Open

pytestmark = pytest.mark.timeout(240)
CAMERA_IN_USE = "document.getElementById('video').srcObject.getVideoTracks()[0].getSettings().deviceId"
IN_VIEW = """(() => {
  const box = document.querySelector('%s').getBoundingClientRect();
  return box.width > 0 && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
})()"""


def test_a_click_before_the_page_is_ready_is_not_lost(open_tab: Open) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    tab = open_tab()
    tab.page.route("**/page/local.json", hold)
    tab.page.reload(wait_until="commit")
    while not held:
        tab.page.wait_for_timeout(20)
    assert tab.page.evaluate("document.querySelectorAll('header[inert], main[inert]').length") == 2
    held[0].continue_()
    tab.start_camera()


def test_fullscreen_keeps_the_controls_in_view(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.page.click("#fullscreen")
    tab.wait_until("document.fullscreenElement?.id === 'view'")
    tab.wait_for_results(2)
    for name in ("#stage", "#pause", "#settings", "#fps"):
        tab.wait_until(IN_VIEW % name)
    tab.page.click("#pause")
    assert tab.page.get_attribute("#pause", "aria-pressed") == "true"
    tab.page.click("#fullscreen")
    tab.wait_until("document.fullscreenElement === null")
    assert tab.page.is_visible("#tab-photos")


def test_a_refused_fullscreen_is_reported(open_tab: Open) -> None:
    refuse = "Element.prototype.requestFullscreen = () => Promise.reject(new TypeError('not allowed here'));"
    tab = open_tab(script=refuse)
    tab.start_camera()
    tab.page.click("#fullscreen")
    tab.wait_until("document.getElementById('badge').textContent === 'No fullscreen: not allowed here'")


def test_another_camera_can_be_chosen(open_tab: Open, browsers: BrowserType) -> None:
    with launch(browsers, f"{CAMERA}=device-count=2", ALLOWED) as several:  # which show a test pattern
        tab = open_tab(inside=several)
        tab.page.click("#start")
        tab.wait_for_results(1)
        tab.page.click("#settings")
        options = tab.page.locator("#camera option")
        names = options.all_inner_texts()
        assert len(set(names)) == 2
        used = tab.page.evaluate(CAMERA_IN_USE)
        assert tab.page.input_value("#camera") == used
        (other,) = [option.get_attribute("value") for option in options.all() if option.get_attribute("value") != used]
        tab.page.select_option("#camera", other)
        tab.wait_until(f"document.getElementById('video').srcObject && {CAMERA_IN_USE} === '{other}'")
        tab.wait_for_results(2)
        assert tab.page.input_value("#camera") == other


def test_one_camera_needs_no_choice(open_tab: Open) -> None:
    tab = open_tab()
    tab.start_camera()
    tab.page.click("#settings")
    assert tab.page.is_visible("#mirror")
    assert not tab.page.is_visible("#camera")
