"""People of a video in the review page, and the slider of the timeline."""

import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from mien.app.settings import Settings
from tests.e2e.browser.conftest import Open
from tests.support.albums import label_folder, rows_of, write_video


@pytest.fixture(scope="module")
def out(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("people")
    write_video(base / "clip.avi", frames=4, rate=8.0)
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    label_folder(base / "clip.avi", base / "out", settings, "annotated", "timeline", every=1)
    return base / "out"


@pytest.fixture
def people(open_tab: Open, address: str) -> Page:
    return open_tab("/people", at=address).page


def test_people_are_named_and_the_timeline_follows(people: Page, out: Path) -> None:
    people.get_by_label("name of person 1").fill("Anna")
    people.get_by_label("name of person 1").press("Enter")
    expect(people.locator("h3")).to_have_text(["Anna"])
    found = Axe().run(people)
    assert found.violations_count == 0, found.generate_report()
    people.get_by_role("button", name="Update the timeline").click()
    expect(people.locator("#message")).to_contain_text("timeline.csv")
    assert {row["name"] for row in rows_of(out, "timeline.csv")} == {"Anna"}


def test_the_keyboard_stays_where_it_is_while_a_name_is_saved(people: Page) -> None:
    people.route("**/api/people", lambda route: (time.sleep(0.5), route.continue_()))
    people.get_by_label("name of person 1").fill("Berta")
    with people.expect_response("**/api/people"):
        people.get_by_label("name of person 1").press("Enter")
    expect(people.locator("h3")).to_have_text(["Berta"])
    expect(people.get_by_label("name of person 1")).to_be_focused()


def test_the_slider_of_the_timeline_shows_the_frame(open_tab: Open, out: Path) -> None:
    page = open_tab("/timeline.html", at=out.as_uri()).page
    page.get_by_role("slider").fill("0.3")
    expect(page.locator(".seek img")).to_have_attribute("src", "annotated/clip.avi/frame_00000002.jpg")
    decoded = "async () => { const i = document.querySelector('.seek img'); await i.decode(); return i.naturalWidth; }"
    assert page.evaluate(decoded) > 0
    page.locator(".plot").first.click(position={"x": 1, "y": 5})
    expect(page.locator(".seek img")).to_have_attribute("src", "annotated/clip.avi/frame_00000000.jpg")
