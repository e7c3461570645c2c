"""Photos in a real browser: selected, dropped and pasted; labeled and drawn as REST returns them."""

import base64
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Route, expect

from mien.data.contract import decode
from tests.e2e.browser.conftest import Open, Tab
from tests.e2e.browser.scenes import person
from tests.e2e.browser.test_live import HURRY
from tests.support import ROOT, encoded
from tests.support.serving import Server

pytestmark = pytest.mark.timeout(240)
PHOTOS = sorted((ROOT / "samples" / "photos").glob("*.jpg"))
ASTRONAUT = ROOT / "samples" / "photos" / "astronaut.jpg"
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

# A file as the page draws and labels it, as an address of a PNG.
UPRIGHT = """async ([text, type]) => {
  const { uprightBitmap } = await import('/page/upright.js');
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const picture = await uprightBitmap(new Blob([bytes], { type }));
  const canvas = Object.assign(document.createElement('canvas'), { width: picture.width, height: picture.height });
  canvas.getContext('2d').drawImage(picture, 0, 0);
  return canvas.toDataURL();
}"""


def wait_until_done(tab: Tab, count: int) -> None:
    expect(tab.page.locator("#progress")).to_have_text(f"{count} photo{'s' * (count > 1)} done")


def test_photos_are_labeled_drawn_and_stepped_through(open_tab: Open, site: Server) -> None:
    tab = open_tab("/#photos")
    tab.page.set_input_files("#files", PHOTOS)
    wait_until_done(tab, len(PHOTOS))
    widths = tab.page.eval_on_selector_all(".tile img", "tiles => tiles.map(tile => tile.naturalWidth)")
    assert [width > 300 for width in widths] == [True] * len(PHOTOS)
    tiles = dict(zip(*(tab.page.locator(f".tile {part}").all_inner_texts() for part in ("h3", ".labels")), strict=True))
    for photo in PHOTOS:
        faces = site.post(photo.read_bytes()).json()["images"][0]["faces"]
        labels = [f"{face['label']}{'?' * face['uncertain']} {round(100 * face['confidence'])}%" for face in faces]
        assert tiles[photo.name] == (labels[0].replace("100%", ">99%") if len(labels) == 1 else "No face found")
    tab.page.locator(".tile .open").first.click()
    assert tab.page.inner_text("#detail-title") == "astronaut.jpg"
    tab.wait_until("document.getElementById('detail-picture').width === 512")
    with_boxes = decode(tab.download("#detail-save")[1]).astype(np.int16)
    changed = np.abs(with_boxes - decode(ASTRONAUT.read_bytes())).max(axis=2) > 60
    assert 0.001 < changed.mean() < 0.1
    assert np.median(np.nonzero(changed), axis=1) == pytest.approx((125, 225), abs=75), "around the face"
    for _ in PHOTOS:
        tab.page.keyboard.press("ArrowRight")
    assert tab.page.inner_text("#detail-title") == PHOTOS[-1].name
    tab.page.keyboard.press("Escape")
    focused = tab.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("astronaut.jpg"), "focus goes back to the tile that was opened"


def test_the_first_screen_shows_every_choice_and_a_photo_can_be_chosen_dropped_and_pasted(open_tab: Open) -> None:
    tab = open_tab()
    for width, height in ((740, 360), (360, 740), (1280, 720)):
        tab.page.set_viewport_size({"width": width, "height": height})
        for button in ("#start", "#choose", "#sample-clip"):
            expect(tab.page.locator(button)).to_be_in_viewport(ratio=1)
    payload = base64.b64encode(ASTRONAUT.read_bytes()).decode()
    for count, events in enumerate(((), ("dragover", "drop"), ("paste",)), 1):
        tab.page.click("#tab-live")
        for event in events:
            tab.page.evaluate(GIVE, [event, "a.jpg", payload])
        if not events:
            with tab.page.expect_file_chooser() as chooser:
                tab.page.click("#choose")
            chooser.value.set_files(ASTRONAUT)
        assert tab.page.is_visible("#panel-photos")
        wait_until_done(tab, count)
        assert "happiness" in tab.page.locator(".tile .labels").last.inner_text()
        assert f"{count} photo{'s' * (count > 1)} done. 1 face" in tab.page.inner_text("#announce")


def test_a_broken_file_is_reported_and_does_not_stop_the_others(open_tab: Open, tmp_path: Path) -> None:
    broken, heic = tmp_path / "broken.jpg", tmp_path / "phone.heic"
    broken.write_bytes(ASTRONAUT.read_bytes()[:2000])
    heic.write_bytes(b"\0\0\0\x18ftypheic")
    tab = open_tab("/#photos")
    tab.page.set_input_files("#files", [broken, ASTRONAUT, heic])
    wait_until_done(tab, 3)
    assert "save the photo as JPEG" in tab.page.locator(".tile .error").nth(1).inner_text()
    assert "happiness" in tab.page.locator(".tile").nth(1).inner_text()
    assert tab.page.locator("text=Try again").count() == 0, "it would fail again"
    tab.page.click("#clear")
    assert tab.page.locator(".tile").count() == 0
    assert tab.page.evaluate("document.activeElement.id") == "files"
    tab.ignore_errors("status of 4")


def test_photos_are_turned_as_their_exif_data_say(open_tab: Open) -> None:
    tab = open_tab("/#photos")
    with Image.open(ASTRONAUT) as photo:
        stored = photo.crop((60, 0, 420, 300)).resize((48, 40))
    for suffix, orientation in [("jpeg", 6), *(("webp", orientation) for orientation in range(1, 9))]:
        payload = encoded(stored, suffix, orientation=orientation, quality=95)
        content = base64.b64encode(payload).decode()
        shown = decode(base64.b64decode(tab.page.evaluate(UPRIGHT, [content, f"image/{suffix}"]).split(",")[1]))
        assert np.abs(shown - decode(payload).astype(int)).mean() < 4, orientation


def test_a_service_that_restarts_is_asked_again_and_a_group_has_three_chips_at_most(open_tab: Open) -> None:
    labels = ("happiness", "happiness", "anger", "fear", "sadness")
    faces = [person(90 * number, 60, 60, **{label: 0.9}) for number, label in enumerate(labels)]
    group = {"images": [{"index": 0, "width": 512, "height": 512, "faces": faces}]}
    answers = chain([Route.abort] * 3, [lambda route: route.fulfill(json=group)])
    tab = open_tab("/#photos", script=HURRY)
    tab.page.route("**/v1/expressions*", lambda route: next(answers)(route))  # noqa: PLW0108 - Playwright marks it
    tab.page.set_input_files("#files", ASTRONAUT)
    wait_until_done(tab, 1)
    chips = tab.page.locator(".tile .labels > *").all_inner_texts()
    assert chips == ["happiness \u00d7 2", "anger \u00d7 1", "2 others"]
    tab.ignore_errors("ERR_FAILED")
