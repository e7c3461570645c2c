"""Accessibility: axe-core on every view, light and dark; keyboard navigation; the model card."""

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser import ROOT, WAIT_MS, Tab

pytestmark = pytest.mark.timeout(240)
Open = Callable[..., Tab]
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PHONE = {"width": 360, "height": 740}


def violations(page: Page) -> list[str]:
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize("colors", ["light", "dark"])
@pytest.mark.parametrize("viewport", [None, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_violation_in_any_view(open_tab: Open, colors: str, viewport: dict[str, int] | None) -> None:
    size = {"viewport": viewport} if viewport else {}
    tab = open_tab(color_scheme=colors, **size)
    assert violations(tab.page) == []
    tab.start_camera()
    assert violations(tab.page) == []
    tab.page.click("#pause")
    tab.page.click("#tab-photos")
    tab.page.set_input_files("#files", ROOT / "samples" / "photos" / "astronaut.jpg")
    tab.page.wait_for_selector(".result canvas", timeout=WAIT_MS)
    assert violations(tab.page) == []
    tab.page.click("footer a >> text=Model card")
    tab.page.wait_for_selector(".document h1", timeout=WAIT_MS)
    assert violations(tab.page) == []


def test_the_keyboard_reaches_everything_in_order(open_tab: Open) -> None:
    tab = open_tab()
    reached = []
    for _ in range(8):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert reached[:3] == ["Skip to the content", "tab-live", "start"]
    assert {"card", "Model card", "API"} <= set(reached)
    tab.page.focus("#start")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".face-label:not(:empty)", timeout=WAIT_MS)
    assert tab.page.evaluate("document.activeElement.id") == "pause"
    tab.page.keyboard.press("Space")
    assert tab.page.get_attribute("#pause", "aria-pressed") == "true"


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
    tab.page.wait_for_timeout(2000)
    assert len(tab.page.evaluate("window.said")) - before <= 1


def test_the_model_card_is_shown_with_its_tables(open_tab: Open) -> None:
    tab = open_tab("/card")
    tab.page.wait_for_selector(".document h1", timeout=WAIT_MS)
    assert tab.page.inner_text(".document h1").strip()
    assert "|" not in tab.page.inner_text(".document")
