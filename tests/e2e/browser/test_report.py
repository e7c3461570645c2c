"""Report in a browser: filters, links to photos, and thousands of faces."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from mien.app.labeling.inputs import Item
from mien.app.labeling.journal import Journal, Result
from mien.app.labeling.report import PER_LABEL, render_page
from mien.data.contract import LABELS
from tests.support import encoded, gradient_image, labeled_face

COUNT = 6_000
LEAST, MOST = 30, 99  # percent


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a journal with thousands of faces of seven labels, with confidences of 30 to 99 %."""
    base = tmp_path_factory.mktemp("report")
    names = [f"in/{number:05d} #ü.jpg" for number in range(COUNT)]
    thumb = encoded(gradient_image(96, 96), "JPEG", quality=85)
    (base / "out" / ".mien").mkdir(parents=True)
    with closing(Journal(base / "out")) as journal:
        journal.sync({name: Item(name, bytes(base / name), 1, "1") for name in names})
        shares = [(LEAST + number * 7 % (MOST - LEAST + 1)) / 100 for number in range(COUNT)]
        labeled = [labeled_face(**{LABELS[number % 7]: share}) for number, share in enumerate(shares)]
        faces = [replace(face, thumb=thumb) for face in labeled]
        known = {"status": "ok", "sha256": "0" * 64, "width": 99, "height": 99}
        journal.save(
            [Result(name, bytes(base / name), faces=(face,), **known) for name, face in zip(names, faces, strict=True)]
        )
        (base / "out" / "report.html").write_text(render_page(journal), encoding="utf-8")
    return base / "out" / "report.html"


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto(report.as_uri())
        yield page


def shown(page: Page) -> list[tuple[str, int]]:
    """Label and confidence, percent, of each card."""
    texts = page.eval_on_selector_all(".card b", "all => all.map(b => b.textContent.trim())")
    found = [re.fullmatch(r">?(\w+) >?(\d+)%", text) for text in texts]
    return [(one[1], int(one[2])) for one in found if one is not None]


def count(page: Page) -> int:
    return int(page.inner_text("#count").split()[0].replace(",", ""))


def test_thousands_of_faces_come_least_confident_first_as_they_are_scrolled_to_and_link_to_their_photos(
    page: Page, report: Path
) -> None:
    assert report.stat().st_size < 20_000_000
    assert count(page) == sum(min(PER_LABEL, len(range(label, COUNT, 7))) for label in range(7))
    drawn = page.locator(".card").count()
    confidences = [confidence for _, confidence in shown(page)]
    assert 120 <= drawn == len(confidences) <= 360
    assert confidences == sorted(confidences)
    assert confidences[0] == LEAST
    cards = page.eval_on_selector_all(
        ".card", "all => all.map(c => [c.querySelector('a').href, [...c.lastChild.children].map(e => e.textContent)])"
    )
    link, texts = next(one for one in cards if one[1][-1].endswith("in/00000 #ü.jpg"))
    assert Path(unquote(urlsplit(link).path)) == (report.parent.parent / "in" / "00000 #ü.jpg")
    assert texts[0].strip() == "surprise 30%"
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function(f"() => document.querySelectorAll('.card').length > {drawn}")


def test_filters_are_kept_in_the_address_and_axe_finds_no_violation_on_a_phone(page: Page) -> None:
    page.select_option("select[name=label]", "anger")
    page.fill("input[name=low]", "40")
    page.fill("input[name=high]", "50")
    found = shown(page)
    assert found
    assert {label for label, _ in found} == {"anger"}
    assert all(40 <= confidence <= 50 for _, confidence in found)
    kept = count(page)
    page.reload()
    assert count(page) == kept
    assert page.input_value("select[name=label]") == "anger"
    page.set_viewport_size({"width": 360, "height": 700})
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") == 360, "it fits a phone"
