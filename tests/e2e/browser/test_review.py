"""Review page: undo, failures, another tab, phone layout, and keyboard."""

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from mien.app.labeling.inputs import CORRECTIONS
from mien.app.labeling.journal import Corrections
from mien.app.settings import Settings
from tests.e2e.browser.conftest import Open
from tests.support import ROOT
from tests.support.albums import label_folder, write_photos

PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def served(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """An output folder of 16 faces and the address of its review page."""
    base = tmp_path_factory.mktemp("review")
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    run = label_folder(write_photos(base / "photos", count=16), base / "out", settings, "report")
    assert sum(run["faces"].values()) == 16
    command = [sys.executable, "-m", "mien", "review", base / "out", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield base / "out", process.stdout.readline().split()[2].rstrip("/")
        process.terminate()


@pytest.fixture
def out(served: tuple[Path, str]) -> Path:
    """The output folder, without decisions."""
    (served[0] / CORRECTIONS).unlink(missing_ok=True)
    return served[0]


@pytest.fixture
def open_review(open_tab: Open, served: tuple[Path, str]) -> Open:
    return partial(open_tab, at=served[1])


def decisions(out: Path) -> dict[str, str]:
    return {correction.file: correction.label for correction in Corrections(out)}


def where(page: Page) -> str:
    """Name of the selected face."""
    return page.inner_text("#where").split(",", maxsplit=1)[0]


def wait_for_face(page: Page, name: str, *, selected: bool = True) -> None:
    script = "([name, selected]) => document.querySelector('#where').textContent.startsWith(name) === selected"
    page.wait_for_function(script, arg=[name, selected])


def decide(page: Page, *keys: str) -> list[str]:
    """Press keys; returns the names of the faces selected at each key."""
    names = []
    for key in keys:
        names.append(where(page))
        page.keyboard.press(key)
        wait_for_face(page, names[-1], selected=False)
    return names


def test_the_keyboard_decides_about_one_face_per_press_and_undo_reverts_in_reverse_order_also_after_a_reload(
    open_review: Open, out: Path
) -> None:
    page = open_review().page
    first, second = decide(page, "1", "2")
    assert decisions(out) == {first: "surprise", second: "fear"}
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    wait_for_face(page, second)
    assert decisions(out) == {first: "surprise"}
    page.reload()
    page.wait_for_function("() => document.querySelector('#where').textContent")
    page.keyboard.press("u")
    wait_for_face(page, first)
    assert decisions(out) == {}
    page.focus("#keys [data-label=fear]")
    (name,) = decide(page, "Enter")
    assert decisions(out) == {name: "fear"}
    held = where(page)
    for _ in range(3):
        page.keyboard.down("x")
    wait_for_face(page, held, selected=False)
    page.keyboard.up("x")
    page.evaluate("select(faces.length - 1)")
    last = where(page)
    for key in ("4", "5"):
        page.keyboard.press(key)
        page.evaluate("last")
    assert decisions(out) == {name: "fear", held: "not_a_face", last: "happiness"}, "none after the last"


def test_keys_wait_for_a_decision_that_is_saved_and_none_acts_on_another_face_if_it_fails(
    open_review: Open, out: Path
) -> None:
    tab = open_review()
    page, answers = tab.page, chain([Route.abort], repeat(lambda route: (time.sleep(0.3), route.continue_())))
    page.route("**/api/decisions", lambda route: next(answers)(route))  # noqa: PLW0108 - Playwright marks it
    names = page.eval_on_selector_all(".card", "all => all.map((card) => card.querySelector('.file').textContent)")
    page.evaluate("for (const key of '123') document.dispatchEvent(new KeyboardEvent('keydown', { key }))")
    page.evaluate("last")
    assert (where(page), decisions(out)) == (names[0], {})
    assert page.inner_text("#message").startswith("Not saved: mien review does not respond")
    for key in ("1", "2", "ArrowRight", "3"):
        page.keyboard.press(key)
    wait_for_face(page, names[4])
    assert decisions(out) == {names[0]: "surprise", names[1]: "fear", names[3]: "disgust"}
    tab.ignore_errors("ERR_FAILED")


def test_a_decision_of_another_tab_is_shown_and_not_replaced_unknowingly(open_review: Open, out: Path) -> None:
    first, second = open_review(), open_review()
    (name,) = decide(first.page, "1")
    second.page.keyboard.press("2")
    second.page.wait_for_function("() => document.querySelector('#message').textContent")
    assert (where(second.page), decisions(out)) == (name, {name: "surprise"})
    assert "surprise" in second.page.inner_text(".card[aria-selected=true]")
    decide(second.page, "2")
    assert decisions(out) == {name: "fear"}
    second.ignore_errors("409")


def test_on_a_phone_every_button_is_in_view_and_works(open_review: Open, out: Path) -> None:
    page = open_review(**PHONE).page
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    for width, height in ((360, 640), (844, 390)):
        page.set_viewport_size({"width": width, "height": height})
        expect(buttons := page.locator("#keys button")).to_have_count(11)
        for button in buttons.all():
            expect(button).to_be_in_viewport(ratio=1)
    name = where(page)
    page.tap("#keys button:has-text('anger')")
    wait_for_face(page, name, selected=False)
    assert decisions(out) == {name: "anger"}
