"""Report in a browser: filters, links to photos, and thousands of faces."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from mien.app.inference.records import Face
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs.report import PER_LABEL, render_page
from mien.app.labeling.records import Input, Result
from mien.data.contract import LABELS
from tests.support import encoded, gradient_image, labeled_face

COUNT = 6_000
LEAST, MOST = 30, 99  # percent
THUMB = encoded(gradient_image(96, 96), "JPEG", quality=85)


def face(number: int) -> Face:
    """A face of one of seven labels, with a confidence of 30 to 99 %."""
    label = number % len(LABELS)
    confidence = (LEAST + number * 7 % (MOST - LEAST + 1)) / 100
    side = 20.0 if number % 10 == 0 else 90.0
    found = labeled_face((0, 0, side, side), uncertain=confidence < 0.5, **{LABELS[label]: confidence})
    return replace(found, reasons=("small",) if side < 24 else (), thumb=THUMB)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a journal with thousands of faces."""
    base = tmp_path_factory.mktemp("report")
    names = [f"in/{number:05d} #ü.jpg" for number in range(COUNT)] + ["in/locked.jpg"]
    path = base / "in" / "00000 #ü.jpg"
    path.parent.mkdir()
    path.write_bytes(encoded(gradient_image(), "JPEG"))
    (base / "out" / ".mien").mkdir(parents=True)
    journal = Journal(base / "out")
    journal.scan((Input(name, "file", bytes(base / name), 1, "1:1") for name in names), lambda _count: None)
    *begun, locked = journal.begin([item for item, _ in journal.todo(0)])
    journal.save([Result(locked, "error", "permission_denied", "[Errno 13] Permission denied: 'in/locked.jpg'")])
    journal.save(Result(item, "ok", None, None, "0" * 64, 99, 99, (face(number),)) for number, item in enumerate(begun))
    (base / "out" / "report.html").write_text(render_page(journal), encoding="utf-8")
    journal.close()
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


def test_thousands_of_faces_come_least_confident_first_as_they_are_scrolled_to_or_printed(
    page: Page, report: Path
) -> None:
    assert report.stat().st_size < 20_000_000
    assert count(page) == sum(min(PER_LABEL, len(range(label, COUNT, 7))) for label in range(7))
    drawn = page.locator(".card").count()
    confidences = [confidence for _, confidence in shown(page)]
    assert 120 <= drawn == len(confidences) <= 360
    assert confidences == sorted(confidences)
    assert confidences[0] == LEAST
    took = page.evaluate("(() => { const began = performance.now(); choose(); return performance.now() - began; })()")
    assert took < 1000
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function(f"() => document.querySelectorAll('.card').length > {drawn}")
    page.select_option("select[name=label]", "anger")
    assert page.locator(".card").count() < count(page)
    page.pdf()
    assert page.locator(".card").count() == count(page), "a print has all chosen faces"


def test_the_page_passes_axe_shows_bars_in_forced_colors_and_fits_a_phone(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.emulate_media(forced_colors="active")
    bars = page.eval_on_selector_all(
        ".share i, .histogram i", "all => all.map((bar) => getComputedStyle(bar).backgroundColor)"
    )
    assert len(bars) == 7 + 10
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") not in bars
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.locator("#grid").evaluate("grid => window.scrollTo(0, grid.offsetTop)")
    assert page.evaluate("document.elementFromPoint(180, 30).closest('.card') !== null"), "the filters hide no faces"


def test_a_card_shows_thumbnail_label_top_three_and_opens_the_photo(page: Page, report: Path) -> None:
    cards = page.eval_on_selector_all(
        ".card",
        "all => all.map(c => [c.querySelector('a').href, [...c.lastChild.children].map(e => e.textContent)])",
    )
    link, texts = next(one for one in cards if one[1][-1].endswith("in/00000 #ü.jpg"))
    assert Path(unquote(urlsplit(link).path)) == (report.parent.parent / "in" / "00000 #ü.jpg")
    assert texts[0].strip() == "surprise 30%"
    assert texts[1] == "surprise 30%"
    assert len(texts) == 1 + 3 + 1
    assert page.evaluate("document.querySelector('.card img').naturalWidth") == 96


def test_filters_by_expression_and_confidence_are_kept_in_the_address(page: Page) -> None:
    page.select_option("select[name=label]", "anger")
    page.fill("input[name=low]", "40")
    page.fill("input[name=high]", "50")
    found = shown(page)
    assert found
    assert {label for label, _ in found} == {"anger"}
    assert all(40 <= confidence <= 50 for _, confidence in found)
    kept = count(page)
    page.fill("input[name=high]", "")
    assert count(page) > kept, "no upper limit"
    page.fill("input[name=high]", "50")
    page.reload()
    assert count(page) == kept
    assert page.input_value("select[name=label]") == "anger"
    page.click("th a:has-text('fear')")
    page.wait_for_function("() => document.querySelector('.card b').textContent.includes('fear')")
    page.select_option("select[name=reason]", "small")
    assert all("small" in text for text in page.eval_on_selector_all(".card", "all => all.map(c => c.textContent)"))
