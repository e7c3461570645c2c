"""Who is who in the live view: numbers of people, as the service gives them."""

import pytest

from tests.browser import Tab
from tests.e2e.browser.scenes import TWO, heading, person, show, start_scene

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("how", ["connection", "pause"])
def test_people_keep_their_numbers_over_a_new_connection_or_a_pause(scene: Tab, how: str) -> None:
    tab = start_scene(scene, *TWO)
    tab.wait_until(heading(2))
    before = tab.page.evaluate("window.connections")
    if how == "pause":
        tab.page.click("#pause")
    show(tab, person(1, *(400, 100), sadness=0.9))  # the second person, whom the new connection calls number 1
    if how == "pause":
        tab.page.click("#pause")
    else:
        tab.page.evaluate("() => window.socket.fail()")
    tab.wait_until(f"window.connections === {before + 1} && document.querySelector('[data-person=\"1\"].away')")
    tab.wait_until("document.querySelector('[data-person=\"2\"] .face-label').textContent.includes('sadness')")
