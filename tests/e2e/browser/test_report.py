"""Report in a browser: filters, links to photos, and thousands of faces."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from mien.app.labeling.inputs import Item
from mien.app.labeling.journal import Journal, Result
from mien.app.labeling.report import write_report
from mien.data.contract import LABELS
from tests.support import encoded, gradient_image, labeled_face


def cards(page: Page) -> list[tuple[str, int]]:
    """Label and confidence, percent, of each card."""
    shown = map(str.split, page.locator(".card .label").all_inner_texts())
    return [(label, int(percent.rstrip("%"))) for label, percent in shown]


def test_thousands_of_faces_are_sorted_filtered_and_linked_to_their_photos(browser: Browser, tmp_path: Path) -> None:
    thumb = encoded(gradient_image(96, 96), "JPEG", quality=85)
    (out := tmp_path / "out").joinpath(".mien").mkdir(parents=True)
    with closing(Journal(out)) as journal:
        items, results = {}, []
        for number in range(6000):
            name = f"in/{number:05d} #ü.jpg"
            items[name] = Item(name, bytes(tmp_path / name), 1, "1")
            face = replace(labeled_face(**{LABELS[number % 7]: 0.3 + number % 10 * 0.07}), thumb=thumb)
            results.append(Result(name, items[name].path, "ok", faces=(face,), sha256="0" * 64, width=99, height=99))
        journal.sync(items)
        journal.save(results)
        write_report(journal)
    assert (out / "report.html").stat().st_size < 20_000_000
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto((out / "report.html").as_uri())
        assert page.inner_text("#count").startswith("4,200 "), "600 of each expression"
        drawn, confidences = page.locator(".card").count(), [confidence for _, confidence in cards(page)]
        assert 120 <= drawn == len(confidences) <= 360
        assert confidences == sorted(confidences)
        assert confidences[0] == 30
        card = page.locator(".card", has_text="in/00000 #ü.jpg")
        assert "surprise 30%" in card.inner_text()
        link = urlsplit(card.locator("a").first.evaluate("link => link.href"))
        assert Path(unquote(link.path)) == tmp_path / "in" / "00000 #ü.jpg"
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_function(f"() => document.querySelectorAll('.card').length > {drawn}")
        page.select_option("select[name=label]", "anger")
        page.fill("input[name=low]", "40")
        page.fill("input[name=high]", "50")
        filtered = cards(page)
        assert {label for label, _ in filtered} == {"anger"}
        assert all(40 <= confidence <= 50 for _, confidence in filtered)
        page.reload()
        assert cards(page) == filtered, "the address keeps them"
        assert page.input_value("select[name=label]") == "anger"
        page.set_viewport_size({"width": 360, "height": 700})
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") == 360, "it fits a phone"
