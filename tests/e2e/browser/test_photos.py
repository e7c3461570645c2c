"""Photos in a real browser: selected, dropped and pasted; drawn as REST returns them; downloads."""

import base64
import codecs
import csv
import io
import json
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from playwright.sync_api import Route

from mien.data.contract import LABELS, decode
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.test_live import HURRY
from tests.support import ROOT
from tests.support.browser import WAIT_MS, Tab
from tests.support.serving import Server

pytestmark = pytest.mark.timeout(240)
PHOTOS = sorted((ROOT / "samples" / "photos").glob("*.jpg"))
ASTRONAUT = ROOT / "samples" / "photos" / "astronaut.jpg"
DRAWN = "() => [...document.querySelectorAll('.tile img')].filter((tile) => tile.naturalWidth > 300).length"
# Gives a file to the page as a drop or a paste does.
GIVE = """([kind, name, text]) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, {type: 'image/jpeg'}));
  const event = kind === 'paste'
    ? new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true, cancelable: true})
    : new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true});
  document.body.dispatchEvent(event);
}"""

# Width, height and pixels of a file as the page draws and labels it.
UPRIGHT = """async ([text, type]) => {
  const { uprightBitmap } = await import('/page/core/upright.js');
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const { width, height } = (window.bitmap = await uprightBitmap(new Blob([bytes], { type })));
  const context = new OffscreenCanvas(width, height).getContext('2d');
  context.drawImage(window.bitmap, 0, 0);
  return [width, height, [...context.getImageData(0, 0, width, height).data]];
}"""


def wait_until_done(tab: Tab, count: int) -> None:
    words = f"{count} photo{'s' if count > 1 else ''} done"
    tab.wait_until(f"document.getElementById('progress').textContent === '{words}'")


def labeled(open_tab: Open, *photos: Path, respond: Callable[[Route], None] | None = None, **options: object) -> Tab:
    """Open the page and label photos; `respond` stands for the service."""
    tab = open_tab("/#photos", **options)
    if respond is not None:
        tab.page.route("**/v1/expressions*", respond)
    tab.page.set_input_files("#files", list(photos))
    wait_until_done(tab, len(photos))
    return tab


def test_photos_are_labeled_drawn_downloadable_filtered_and_stepped_through(open_tab: Open, site: Server) -> None:
    tab = labeled(open_tab, *PHOTOS)
    assert tab.page.evaluate(DRAWN) == len(PHOTOS)
    assert tab.page.locator(".tile canvas").count() == 0, "each would keep a megabyte"

    answers = {entry["file"]: entry for entry in json.loads(tab.download("#json")[1])}
    table = list(csv.DictReader(io.StringIO(tab.download("#csv")[1].decode("utf-8-sig"))))
    for photo in PHOTOS:
        expected = site.post(photo.read_bytes()).json()["images"][0]["faces"]
        assert answers[photo.name]["images"][0]["faces"] == expected
        rows = [row for row in table if row["file"] == photo.name]
        assert [row["status"] for row in rows] == (["ok"] * len(expected) or ["no_face"])
        for row, face in zip(rows, expected, strict=False):
            assert float(row["x"]) == face["box"]["x"]
            assert row["label"] == face["top"][0]["label"]
            assert [float(row[f"p_{label}"]) for label in LABELS] == [face["probabilities"][label] for label in LABELS]

    names = [button.split()[0] for button in tab.page.locator("#filter button:visible").all_inner_texts()]
    assert names[0] == "all"
    assert names[-1] == "no", "the cat has no face"
    tab.page.click("[data-kind='no face']")
    assert tab.page.locator(".tile:visible h3").all_inner_texts() == ["chelsea.jpg"]
    tab.page.click("[data-kind=happiness]")
    assert "astronaut.jpg" in tab.page.locator(".tile:visible h3").all_inner_texts()
    tab.page.click("[data-kind=all]")
    tab.page.locator(".tile .open").first.click()
    assert tab.page.inner_text("#detail-title") == "astronaut.jpg"
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.inner_text("#detail-title") == "chelsea.jpg"
    tab.page.focus("#detail-after")
    for _ in PHOTOS:
        tab.page.keyboard.press("ArrowRight")
    assert tab.page.inner_text("#detail-title") == PHOTOS[-1].name
    tab.page.keyboard.press("ArrowLeft")
    assert tab.page.inner_text("#detail-title") == PHOTOS[-2].name
    tab.page.keyboard.press("Escape")
    focused = tab.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("astronaut.jpg"), "focus goes back to the tile that was opened"


def test_the_downloaded_image_is_the_photo_with_its_boxes(open_tab: Open) -> None:
    tab = labeled(open_tab, ASTRONAUT)
    tab.page.click(".tile .open")
    tab.wait_until("document.getElementById('detail-picture').width === 512")
    fitted = tab.box("#detail-picture")["width"]
    tab.page.click("#detail-picture")
    assert tab.box("#detail-picture")["width"] > 1.5 * fitted
    tab.page.click("#detail-larger")
    assert tab.box("#detail-picture")["width"] == fitted
    assert tab.page.locator("#detail .bars li:visible").count() == 7
    drawn = decode(tab.download("#detail-save")[1]).astype(np.int16)
    plain = decode(ASTRONAUT.read_bytes()).astype(np.int16)
    assert drawn.shape == plain.shape
    changed = np.abs(drawn - plain).max(axis=2) > 60
    rows, columns = np.nonzero(changed)
    assert 0.001 < changed.mean() < 0.1
    assert 150 < np.median(columns) < 300, "around the face, and there alone"
    assert np.median(rows) < 250


def test_a_photo_can_be_dropped_and_pasted_from_either_tab(open_tab: Open) -> None:
    tab = open_tab()
    payload = base64.b64encode(ASTRONAUT.read_bytes()).decode()
    for count, events in enumerate((("dragover", "drop"), ("paste",)), 1):
        tab.page.click("#tab-live")
        for event in events:
            tab.page.evaluate(GIVE, [event, "a.jpg", payload])
        assert tab.page.is_visible("#panel-photos")
        wait_until_done(tab, count)
        assert "happiness" in tab.page.locator(".tile .labels").last.inner_text()
        assert f"{count} photo{'s' * (count > 1)} done. 1 face" in tab.page.inner_text("#announce")


def test_a_broken_file_is_reported_and_does_not_stop_the_others(open_tab: Open, tmp_path: Path) -> None:
    broken, heic = tmp_path / "=broken.jpg", tmp_path / "phone.heic"
    broken.write_bytes(ASTRONAUT.read_bytes()[:2000])
    heic.write_bytes(b"\0\0\0\x18ftypheic")
    tab = labeled(open_tab, broken, ASTRONAUT, heic)
    assert tab.page.locator(".tile .error").count() == 2
    assert "save the photo as JPEG" in tab.page.locator(".tile .error").nth(1).inner_text()
    assert tab.page.locator(".tile").nth(1).locator(".face-label").count() == 1
    tab.page.click("[data-kind=error]")
    assert tab.page.locator(".tile:visible").count() == 2
    table = tab.download("#csv")[1]
    assert table.startswith(codecs.BOM_UTF8), "without it, Excel does not read UTF-8"
    rows = list(csv.DictReader(io.StringIO(table.decode("utf-8-sig"))))
    assert [row["status"] for row in rows] == ["error", "ok", "error"]
    assert rows[0]["file"] == "'=broken.jpg", "a spreadsheet must not take it for a formula"
    assert tab.page.locator("text=Try again").count() == 0, "it would fail again"
    tab.page.click("#clear")
    assert tab.page.locator(".tile").count() == 0
    assert tab.page.is_hidden("#toolbar")
    tab.page.click("#undo")
    assert tab.page.locator(".tile").count() == 3
    assert tab.page.evaluate(DRAWN) == 1
    wait_until_done(tab, 3)
    tab.ignore_errors("status of 4")


def test_a_file_that_cannot_be_read_is_not_blamed_on_the_service(open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab("/#photos")
    tab.page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('input'), {type: 'file', id: 'disk'}))"
    )
    (moved := tmp_path / "moved.jpg").write_bytes(ASTRONAUT.read_bytes())
    tab.page.set_input_files("#disk", moved)
    moved.unlink()
    tab.page.evaluate("""() => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(document.getElementById("disk").files[0]);
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer, bubbles: true}));
    }""")
    wait_until_done(tab, 1)
    assert "cannot be read" in tab.page.inner_text(".tile .error")


def test_a_refused_photo_tells_its_status_or_waits_once_to_be_tried_again(open_tab: Open) -> None:
    script = """
      window.released = 0;
      const close = ImageBitmap.prototype.close;
      ImageBitmap.prototype.close = function () { window.released++; close.call(this); };
    """
    tab = labeled(open_tab, *PHOTOS[:3], respond=lambda route: route.fulfill(status=500, body="down"), script=script)
    assert tab.page.evaluate("window.released") >= 3, "their pixels do not stay in memory"
    tab.page.route("**/v1/expressions*", lambda route: route.fulfill(status=413, body="<html>Too large</html>"))
    tab.page.set_input_files("#files", ASTRONAUT)
    wait_until_done(tab, 4)
    assert "413" in tab.page.locator(".tile .error").last.inner_text()
    assert tab.page.locator("text=Try again").count() == 3, "not where it would fail again"
    tab.page.route("**/v1/expressions*", lambda _route: None)  # two are busy
    for _ in range(3):
        tab.page.click("text=Try again")
    assert tab.page.locator("text=Waiting…").count() == 1
    assert tab.page.locator("text=Try again").count() == 0
    tab.ignore_errors("status of 500", "status of 413")


def test_a_photo_that_the_browser_cannot_read_is_shown_as_it_was_labeled(open_tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "astronaut.tiff"
    with Image.open(ASTRONAUT) as photo:
        upright = photo.crop((60, 0, 420, 512))
    upright.save(path)
    tab = labeled(open_tab, path)
    tab.page.click(".tile .open")
    tab.wait_until("document.getElementById('detail-picture').width !== 300")
    size = tab.page.evaluate("(({width, height}) => [width, height])(document.getElementById('detail-picture'))")
    assert tuple(size) == upright.size


def test_photos_are_turned_as_their_exif_data_say(open_tab: Open) -> None:
    tab = open_tab("/#photos")
    with Image.open(ASTRONAUT) as photo:
        stored = photo.crop((60, 0, 420, 300)).resize((48, 40))
    for suffix, orientation in [("jpeg", 6), *(("webp", orientation) for orientation in range(1, 9))]:
        exif, payload = Image.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        stored.save(payload, suffix, exif=exif, quality=95)
        with Image.open(payload) as saved:
            upright = ImageOps.exif_transpose(saved).convert("RGB")
        content = base64.b64encode(payload.getvalue()).decode()
        width, height, pixels = tab.page.evaluate(UPRIGHT, [content, f"image/{suffix}"])
        assert (width, height) == upright.size
        shown = np.array(pixels).reshape(height, width, 4)[..., :3]
        assert np.abs(shown - np.asarray(upright, int)).mean() < 4, orientation


def test_the_three_samples_can_be_tried(open_tab: Open) -> None:
    tab = open_tab("/#photos")
    tab.page.click("#try-samples")
    wait_until_done(tab, 3)
    assert tab.page.locator(".tile .open img").count() == 3
    assert "No face found" in tab.page.inner_text("#results"), "one shows a cat"
    assert tab.page.is_hidden("#try-samples")


def test_photos_are_labeled_by_a_service_that_restarts_meanwhile(open_tab: Open) -> None:
    answers = chain([Route.abort] * 3, repeat(Route.continue_))
    tab = labeled(open_tab, ASTRONAUT, respond=lambda route: next(answers)(route), script=HURRY)  # noqa: PLW0108
    assert "happiness" in tab.page.inner_text(".tile .labels")
    tab.page.click("#clear")
    assert tab.page.inner_text("#announce") == "1 photo removed."
    tab.ignore_errors("ERR_FAILED")


def test_the_attention_map_is_shown_if_the_model_has_one(open_tab: Open, site: Server) -> None:
    plain = open_tab("/card")
    plain.page.route("**/v1/models", lambda route: route.fulfill(json={"models": []}))
    plain.page.goto(f"{site.url}/#photos")
    plain.wait_until_ready()
    assert plain.page.is_hidden("#attention-field")
    tab = open_tab("/#photos")
    tab.page.check("#attention")
    tab.page.set_input_files("#files", ASTRONAUT)
    tab.page.click(".tile .open", timeout=WAIT_MS)
    tab.page.wait_for_selector("#detail .attention canvas", timeout=WAIT_MS)
    tab.page.keyboard.press("Escape")
    tab.page.click("#tab-live")
    tab.start_camera()
    tab.wait_for_results(2)
    tab.page.click("#look")
    tab.page.wait_for_selector(".face .attention canvas", timeout=WAIT_MS)
    tab.page.click("#stop")


def test_an_open_photo_has_arrows_to_those_that_are_labeled_later(open_tab: Open) -> None:
    held: list[Route] = []
    tab = labeled(open_tab, PHOTOS[0])
    tab.page.route("**/v1/expressions*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    tab.page.set_input_files("#files", PHOTOS[1])
    tab.wait_for(lambda: held, "the photo is not sent")
    tab.page.locator(".tile .open").click()
    assert tab.page.is_hidden("#detail-after")
    held[0].continue_()
    tab.page.click("#detail-after", timeout=10_000)
    assert tab.page.inner_text("#detail-title") == PHOTOS[1].name


def test_a_format_that_only_the_browser_reads_is_sent_as_jpeg(open_tab: Open, tmp_path: Path) -> None:
    avif = tmp_path / "astronaut.avif"
    with Image.open(ASTRONAUT) as photo:
        photo.save(avif)
    tab = open_tab("/#photos")
    sent: list[str] = []
    tab.page.on("request", lambda request: sent.append(request.headers.get("content-type", "")))
    tab.page.set_input_files("#files", avif)
    wait_until_done(tab, 1)
    assert "image/jpeg" in sent
    assert "happiness" in tab.page.inner_text(".tile .labels")


def test_the_first_screen_shows_a_labeled_photo_and_every_choice(open_tab: Open, site: Server) -> None:
    tab = open_tab()
    tab.page.wait_for_selector("#example-faces .attention canvas", timeout=WAIT_MS)
    photo = ROOT / "app" / "static" / "page" / "samples" / "photo.jpg"
    (face,) = site.post(photo.read_bytes()).json()["images"][0]["faces"]
    assert face["label"] in tab.page.inner_text("#example-faces .face-label")
    for width, height in ((1280, 720), (360, 740), (740, 360)):
        tab.page.set_viewport_size({"width": width, "height": height})
        for button in map(tab.box, ("#start", "#choose", "#sample-clip")):
            assert button["y"] + button["height"] <= height
    with tab.page.expect_file_chooser() as chooser:
        tab.page.click("#choose")
    chooser.value.set_files(ASTRONAUT)
    wait_until_done(tab, 1)
    tab.page.click("#tab-live")
    tab.page.click("#sample-clip")
    tab.page.wait_for_selector(".face-label:not(:empty)", timeout=WAIT_MS)
    assert tab.page.is_hidden("#example-faces")
    assert not tab.page.is_checked("#mirror"), "a video is not a mirror"
    tab.page.click("#stop")
    assert not tab.page.evaluate("document.getElementById('video').hasAttribute('src')")
