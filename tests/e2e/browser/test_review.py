"""Review page: undo, failures, another tab, phone layout, and keyboard."""

import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route

from mien.app.labeling.inputs import CORRECTIONS
from mien.app.labeling.journal import Corrections
from mien.app.settings import Settings
from tests.e2e.browser.conftest import Open
from tests.support.albums import label_folder, write_photos

FACES = 16
PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def out(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("review")
    photos = write_photos(base / "photos", count=FACES)
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    run = label_folder(photos, base / "out", settings, "report")
    assert sum(run["faces"].values()) == FACES
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


def test_keys_pressed_while_a_decision_is_saved_act_on_the_next_faces(review: Page, out: Path) -> None:
    review.route("**/api/decisions", lambda route: (time.sleep(0.3), route.continue_()))
    names = review.eval_on_selector_all(".card", "all => all.map((card) => card.querySelector('.file').textContent)")
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


def test_a_decision_of_another_tab_is_shown_and_not_replaced_unknowingly(
    open_tab: Open, address: str, out: Path
) -> None:
    first, second = open_tab(at=address), open_tab(at=address)
    name = where(first.page)
    decide(first.page, "1")
    second.page.keyboard.press("2")
    second.page.wait_for_function("() => document.querySelector('#message').textContent")
    assert (where(second.page), decisions(out)) == (name, {name: "surprise"})
    assert "surprise" in second.page.inner_text(".card[aria-selected=true]")
    decide(second.page, "2")
    assert decisions(out) == {name: "fear"}
    second.ignore_errors("409")


def test_on_a_phone_every_button_is_in_view_and_works(open_tab: Open, address: str, out: Path) -> None:
    page = open_tab(at=address, **PHONE).page
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    for width, height in ((360, 640), (844, 390)):
        page.set_viewport_size({"width": width, "height": height})
        boxes = [button.bounding_box() for button in page.locator("#keys button").all()]
        assert len(boxes) == 11
        for box in filter(None, boxes):
            assert 0 <= box["x"] <= width - box["width"]
            assert 0 <= box["y"] <= height - box["height"]
    name = where(page)
    page.tap("#keys button:has-text('anger')")
    wait_for_next(page, name)
    assert decisions(out) == {name: "anger"}


def test_the_keyboard_decides_about_one_face_per_press_and_none_after_the_last(review: Page, out: Path) -> None:
    review.focus("#keys [data-label=fear]")
    (name,) = decide(review, "Enter")
    assert decisions(out) == {name: "fear"}
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
    assert decisions(out) == {name: "fear", held: "not_a_face", last: "happiness"}
