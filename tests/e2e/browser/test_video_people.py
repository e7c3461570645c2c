"""People of a video in the review page, and the slider of the timeline."""

import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

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


def test_people_are_named_by_keyboard_and_the_timeline_follows(open_tab: Open, address: str, out: Path) -> None:
    page = open_tab("/people", at=address).page
    page.route("**/api/people", lambda route: (time.sleep(0.3), route.continue_()))
    page.get_by_label("name of person 1").fill("Anna")
    with page.expect_response("**/api/people"):
        page.get_by_label("name of person 1").press("Enter")
    expect(page.locator("h3")).to_have_text(["Anna"])
    expect(page.get_by_label("name of person 1")).to_be_focused()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.get_by_role("button", name="Update the timeline").click()
    expect(page.locator("#message")).to_contain_text("timeline.csv")
    assert {row["name"] for row in rows_of(out, "timeline.csv")} == {"Anna"}


def test_the_slider_of_the_timeline_shows_the_frame(open_tab: Open, out: Path) -> None:
    page = open_tab("/timeline.html", at=out.as_uri()).page
    page.get_by_role("slider").fill("0.3")
    expect(page.locator(".seek img")).to_have_attribute("src", "annotated/clip.avi/frame_00000002.jpg")
    page.locator(".plot").first.click(position={"x": 1, "y": 5})
    expect(page.locator(".seek img")).to_have_attribute("src", "annotated/clip.avi/frame_00000000.jpg")
