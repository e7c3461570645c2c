"""People in the live view: cards, numbers, the threshold, and the correction for a neutral face."""

import pytest

from tests.e2e.browser.conftest import Open
from tests.e2e.browser.scenes import SCENE, TWO, heading, person, show, start_scene
from tests.e2e.browser.test_access import violations
from tests.support.browser import Tab

pytestmark = pytest.mark.timeout(240)
# The numbers of cards after a person has been seen, 9 s later, and 11 s later.
CARDS = """async (face) => {
  const { People } = await import('/page/ui/people.js');
  const people = new People(...['ul', 'p'].map((name) => document.createElement(name)));
  return [[[face], 0], [[], 9000], [[], 11000]].map(([faces, now]) => {
    people.update(faces, now);
    people.refresh(1000 + now, 0);
    return people.list.children.length;
  });
}"""


def test_more_than_four_people_have_compact_cards(open_tab: Open) -> None:
    places = [(20 + 150 * (i % 4), 30 + 150 * (i // 4)) for i in range(12)]
    group = [person(i + 1, *place, side=85, happiness=0.99) for i, place in enumerate(places)]
    group[0]["reasons"] = ["covered"]
    tab = start_scene(open_tab(script=SCENE), *group)
    tab.wait_until("document.querySelectorAll('#faces.compact .face').length === 12")
    assert tab.page.get_by_role("heading", name="Person 12").count() == 1, "screen readers say whose card it is"
    assert violations(tab.page) == []
    tab.page.click("[data-person='1'] .more")
    assert tab.page.locator("[data-person='1'] .bars li:visible").count() == 7


def test_the_card_of_a_person_who_left_shrinks_and_has_its_old_place_after_a_return(scene: Tab) -> None:
    tab = start_scene(scene, person(1, 60, 100, happiness=0.6), TWO[1])
    tab.wait_until(heading(2))
    tall = tab.box("[data-person='1']")["height"]
    show(tab, TWO[1])
    tab.page.wait_for_selector("#faces .face:last-child[data-person='1'].away")
    assert tab.box("[data-person='1']")["height"] < tall / 2.5
    assert "left" in tab.page.inner_text("[data-person='1']")
    assert tab.page.locator("[data-person='1'] .uncertain").count() == 0
    show(tab, *TWO)
    tab.page.wait_for_selector("#faces .face:first-child[data-person='1']")
    show(tab)
    tab.wait_until("document.getElementById('badge').textContent === 'No face in view'")
    assert tab.page.is_visible("#badge")
    show(tab, *TWO)
    tab.wait_until("document.getElementById('badge').hidden")
    assert tab.page.evaluate(CARDS, TWO[0]) == [1, 1, 0]


def test_a_resting_face_is_neutral_after_a_correction_that_can_be_undone(scene: Tab) -> None:
    tab = start_scene(scene, person(1, 60, 100, sadness=0.6, neutral=0.3))
    label = "document.querySelector('.face-label')"
    tab.wait_until(f"{label}.textContent.includes('sadness')")
    tab.page.evaluate("() => { window.delay_ms = 1500; }")  # three frames in two seconds, which are too few
    tab.page.click(".neutral")
    tab.wait_until(f"/^neutral[?]?[*]/.test({label}.textContent)")
    tab.page.evaluate("() => { window.delay_ms = 15; }")
    show(tab, person(1, 60, 100, sadness=0.95, neutral=0.02))
    tab.wait_until(f"/^sadness[?]?[*]/.test({label}.textContent)")
    show(tab, person(1, 60, 100, sadness=0.6, neutral=0.3))
    tab.wait_until(f"/^neutral[?]?[*]/.test({label}.textContent)")
    tab.page.click(".neutral")
    assert tab.page.inner_text(".neutral") == "This is their neutral face"
    tab.wait_until(f"/^sadness[?]? /.test({label}.textContent)")


def test_the_card_says_what_a_person_can_do_for_a_better_label(scene: Tab) -> None:
    show(scene, person(1, 200, 150, side=22, happiness=0.9) | {"reasons": ["small", "dark"]})
    scene.wait_until(
        "document.querySelector('.hint')?.textContent === 'Move closer: the face is too small, 22 pixels wide'"
    )
    show(scene, person(1, 200, 150, side=22, happiness=0.4, neutral=0.39))
    scene.wait_until("document.querySelector('.hint').textContent.includes('neutral')")
    show(scene, person(1, 200, 150, side=22, happiness=0.9))
    scene.wait_until("document.querySelector('.hint').hidden")


def test_controls_stay_on_screen_and_the_stage_does_not_jump(open_tab: Open) -> None:
    tab = open_tab(script=SCENE)
    for width, height in ((1280, 720), (768, 1024), (360, 740), (740, 360)):
        tab.page.set_viewport_size({"width": width, "height": height})
        start_scene(tab, *TWO)
        before = tab.box("#stage")
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing overflows sideways"
        for name in ("#pause", "#stop", "#settings" if width > 700 and height > 500 else "#more"):
            box = tab.box(name)
            assert 0 <= box["x"] <= width - box["width"]
            assert box["y"] + box["height"] <= height, f"{name} is below the fold"
        for _ in ("pause", "resume"):
            tab.page.click("#pause")
            assert tab.box("#stage") == before


def test_a_card_shows_three_expressions_and_all_seven_on_demand(scene: Tab) -> None:
    tab = start_scene(scene, TWO[1])
    assert tab.page.inner_text(".face h3").split() == ["1", "Person", "1"]
    rows = tab.page.locator(".face .bars li:visible")
    assert rows.count() == 3
    assert tab.page.inner_text(".face .bars li.lead") == "", "the label above the bar says it"
    tab.page.click(".face .more")
    assert rows.count() == 7
    assert tab.page.get_attribute(".face .more", "aria-expanded") == "true"
    tab.page.click(".face .more")
    show(tab, person(2, 400, 100, anger=0.98))  # 0.3 % for each other expression
    tab.wait_until("document.querySelectorAll('.face .bars li.none').length === 6")
    assert rows.count() == 1


def test_labels_below_the_threshold_of_the_settings_are_uncertain(scene: Tab) -> None:
    tab = start_scene(scene, person(1, 200, 150, side=200, neutral=0.6))
    tab.page.click("#settings")
    for value, label in ((90, "neutral? 60%"), (10, "neutral 60%")):
        tab.page.locator("#threshold").fill(str(value))
        tab.wait_until(f"document.querySelector('.face-label').textContent === '{label}'")
    assert tab.page.inner_text("#threshold-value") == "10%"


def test_people_keep_their_numbers_over_a_new_connection_and_a_pause(scene: Tab) -> None:
    tab = start_scene(scene, *TWO)
    tab.wait_until(heading(2))
    before = tab.page.evaluate("window.connections")
    stale = "document.getElementById('faces').classList.contains('stale')"
    assert not tab.page.evaluate(stale)
    tab.page.evaluate("() => window.socket.fail()")
    assert tab.page.evaluate(stale), "cards do not look live while nothing arrives"
    tab.wait_until(f"!{stale}")
    tab.page.click("#pause")
    show(tab, person(1, *(400, 100), sadness=0.9))  # the second person, whom the new connection calls number 1
    tab.page.click("#pause")
    tab.wait_until(f"window.connections === {before + 2} && document.querySelector('[data-person=\"1\"].away')")
    tab.wait_until("document.querySelector('[data-person=\"2\"] .face-label').textContent.includes('sadness')")
