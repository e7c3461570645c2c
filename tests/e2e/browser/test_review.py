"""Review page: undo, filters that persist after a reload, phone layout, and keyboard."""

import shutil
import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route

from mien.app.labeling.corrections import Corrections
from mien.app.labeling.files import CORRECTIONS
from mien.app.settings import Settings
from tests.e2e.browser.conftest import Open, served
from tests.support.albums import label_folder, write_photos

FACES = 16
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def out(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("review")
    photos = write_photos(base / "photos", count=FACES)
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    outcome = label_folder(photos, base / "out", settings, "report")
    assert sum(outcome.labels.values()) == FACES
    return base / "out"


@pytest.fixture(autouse=True)
def undecided(out: Path) -> None:
    (out / CORRECTIONS).unlink(missing_ok=True)


@pytest.fixture
def review(open_tab: Open, address: str) -> Page:
    return open_tab(at=address).page


def decisions(out: Path) -> dict[str, str]:
    return {correction.file: correction.label for correction in Corrections(out)}


def where(page: Page) -> str:
    return page.inner_text("#where").split(",", maxsplit=1)[0]


def wait_for_face(page: Page, name: str) -> None:
    page.wait_for_function("name => document.querySelector('#where').textContent.startsWith(name)", arg=name)


def wait_for_next(page: Page, name: str) -> None:
    """Wait until another face than `name` is selected."""
    page.wait_for_function("name => !document.querySelector('#where').textContent.startsWith(name)", arg=name)


def decide(page: Page, *keys: str) -> list[str]:
    """Press keys; returns the names of the faces selected at each key."""
    names = []
    for key in keys:
        names.append(where(page))
        page.keyboard.press(key)
        wait_for_next(page, names[-1])
    return names


def test_undo_reverts_decisions_in_reverse_order_also_after_a_reload(review: Page, out: Path) -> None:
    first, second = decide(review, "1", "2")
    assert decisions(out) == {first: "surprise", second: "fear"}
    review.keyboard.press("ArrowRight")
    review.keyboard.press("u")
    wait_for_face(review, second)
    assert decisions(out) == {first: "surprise"}
    review.reload()
    review.wait_for_function("() => document.querySelector('#where').textContent")
    review.keyboard.press("u")
    wait_for_face(review, first)
    assert decisions(out) == {}
    review.keyboard.press("u")
    assert "Nothing to undo" in review.inner_text("#message")


def test_keys_pressed_while_a_decision_is_saved_act_on_the_next_faces(review: Page, out: Path) -> None:
    review.route("**/api/decisions", lambda route: (time.sleep(0.3), route.continue_()))
    names = review.eval_on_selector_all(".card", "all => all.map((card) => card.lastChild.textContent)")
    for key in ("1", "2", "ArrowRight", "3"):
        review.keyboard.press(key)
    wait_for_face(review, names[4])
    assert decisions(out) == {names[0]: "surprise", names[1]: "fear", names[3]: "disgust"}


def test_keys_that_wait_behind_a_failure_decide_about_no_other_face(open_tab: Open, address: str, out: Path) -> None:
    tab = open_tab(at=address)
    review, failed = tab.page, []

    def once(route: Route) -> None:
        route.continue_() if failed else route.abort()
        failed.append(route)

    review.route("**/api/decisions", once)
    name = where(review)
    review.evaluate("for (const key of '123') document.dispatchEvent(new KeyboardEvent('keydown', { key }))")
    review.evaluate("last")
    assert (where(review), decisions(out)) == (name, {})
    assert review.inner_text("#message").startswith("Not saved: mien review does not respond")
    decide(review, "1")
    assert decisions(out) == {name: "surprise"}
    tab.ignore_errors("ERR_FAILED")


def test_a_decision_of_another_tab_is_shown_and_neither_replaced_nor_undone_unknowingly(
    open_tab: Open, address: str, out: Path
) -> None:
    first, tab = open_tab(at=address), open_tab(at=address)
    review = first.page
    name = where(review)
    decide(review, "1")
    tab.page.keyboard.press("2")
    tab.page.wait_for_function("() => document.querySelector('#message').textContent")
    assert (where(tab.page), decisions(out)) == (name, {name: "surprise"})
    assert "surprise" in tab.page.inner_text(".card[aria-selected=true]")
    decide(tab.page, "2")
    assert decisions(out) == {name: "fear"}
    review.keyboard.press("u")
    review.wait_for_function("() => document.querySelector('#message').textContent")
    assert decisions(out) == {name: "fear"}
    tab.page.keyboard.press("u")
    wait_for_face(tab.page, name)
    assert decisions(out) == {name: "surprise"}
    first.ignore_errors("409")
    tab.ignore_errors("409")


def test_a_reviewer_of_a_sample_sees_no_label_and_undoes_nothing_of_another(
    open_tab: Open, out: Path, tmp_path: Path
) -> None:
    def of_ben(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"file": "reviews/ben.jsonl"})

    shutil.copytree(out, tmp_path / "out")
    with served(tmp_path / "out", "--sample", "8", "--reviewer", "anna") as address:
        page = open_tab(at=address, **PHONE).page
        assert page.locator("[aria-pressed=true]").count() == 0
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        decide(page, "1")
        assert page.inner_text("#file") == "reviews/anna.jsonl"
        page.route("**/api/run", of_ben)
        page.reload()
        page.wait_for_selector("[aria-selected=true]")
        page.keyboard.press("u")
        page.evaluate("last")
        assert "Nothing to undo" in page.inner_text("#message")
    assert (tmp_path / "out" / "reviews" / "anna.jsonl").read_text().count("\n") == 1


def test_after_the_last_face_of_a_list_more_are_loaded(open_tab: Open, address: str, out: Path) -> None:
    page = open_tab().page

    def ten(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        if "offset=0" in route.request.url:
            body |= {"faces": body["faces"][:10], "more": True}
        route.fulfill(response=response, json=body)

    page.route("**/api/faces*", ten)
    page.goto(address)
    page.wait_for_selector("[aria-selected=true]")
    page.evaluate("select(9)")
    decide(page, "1")
    assert page.locator(".card").count() == FACES
    assert page.evaluate("selected") == 10


def test_filters_are_in_the_address_and_survive_a_reload(review: Page) -> None:
    labels = review.eval_on_selector_all(
        "#label option", "all => all.filter(o => !o.text.endsWith('(0)')).map(o => o.value)"
    )
    review.select_option("#label", labels[1])
    review.select_option("#state", "all")
    assert f"label={labels[1]}&reason=&state=all" in review.url
    shown = review.locator(".card").count()
    review.reload()
    review.wait_for_selector("[aria-selected=true]")
    assert (review.input_value("#label"), review.input_value("#state")) == (labels[1], "all")
    assert review.locator(".card").count() == shown
    review.goto(f"{review.url.split('?')[0]}?label=bored&state=all")
    review.wait_for_selector("[aria-selected=true]")
    assert (review.input_value("#label"), review.input_value("#state")) == ("", "all")


def test_on_a_phone_every_button_is_in_view_and_works(open_tab: Open, address: str, out: Path) -> None:
    page = open_tab(at=address, **PHONE).page
    for width, height in ((390, 844), (360, 640), (844, 390)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.documentElement.scrollHeight") <= height
        buttons = page.locator("#keys button").all()
        assert len(buttons) == 11
        for box in (button.bounding_box() for button in buttons):
            assert box is not None
            assert 0 <= box["x"] <= width - box["width"]
            assert 0 <= box["y"] <= height - box["height"]
            assert box["height"] >= 28
    name = where(page)
    page.tap("#keys button:has-text('anger')")
    wait_for_next(page, name)
    assert decisions(out) == {name: "anger"}


def test_the_keyboard_decides_about_one_face_per_press_and_none_after_the_last(review: Page, out: Path) -> None:
    for _ in range(5):  # at most: three filters, the selected face, the first button
        review.keyboard.press("Tab")
        if review.evaluate("document.activeElement.dataset.label") == "surprise":
            break
    review.keyboard.press("Tab")
    name, target = where(review), review.evaluate("document.activeElement.dataset.label")
    decide(review, "Enter")
    assert decisions(out) == {name: target} == {name: "fear"}
    review.keyboard.press("ArrowLeft")
    decide(review, "Delete")
    assert decisions(out) == {}
    held = where(review)
    for _ in range(3):
        review.keyboard.down("x")
    wait_for_next(review, held)
    review.keyboard.up("x")
    review.evaluate("select(faces.length - 1)")
    last = where(review)
    for key in ("4", "5"):
        review.keyboard.press(key)
        review.evaluate("last")
    assert "last face" in review.inner_text("#message")
    review.keyboard.press("ArrowLeft")
    review.wait_for_selector("[aria-selected=true]")
    assert (where(review), decisions(out)) == (last, {held: "not_a_face", last: "happiness"})


def test_the_page_passes_axe_and_forced_colors_show_the_selected_face(review: Page) -> None:
    decide(review, "1")
    found = Axe().run(review)
    assert found.violations_count == 0, found.generate_report()
    review.emulate_media(forced_colors="active")
    colors = review.eval_on_selector_all(".card", "all => all.map((card) => getComputedStyle(card).borderTopColor)")
    assert colors.count(colors[review.evaluate("selected")]) == 1
