"""Recorded sessions: summary, CSV, JSON, annotated video and snapshot, all created in the browser."""

import csv
import io
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.data.contract import LABELS, Array, decode
from mien.data.contract.palette import COLORS
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.scenes import SCENE, TWO, show, start_scene

pytestmark = pytest.mark.timeout(240)
HAPPINESS = COLORS["happiness"]
# Whether the browser's storage has a second of video.
STORED = """new Promise((done) => {
  indexedDB.open('mien').onsuccess = ({ target: { result: database } }) => {
    database.transaction('parts').objectStore('parts').getAll().onsuccess = ({ target: { result: parts } }) =>
      done(parts.flatMap(({ video }) => video).some(({ size }) => size > 5000));
    database.close();
  };
})"""


def test_a_session_ends_in_a_summary_with_its_files(open_tab: Open, tmp_path: Path) -> None:
    tab = start_scene(open_tab(script=SCENE), *TWO)
    requests: list[str] = []
    tab.page.on("request", lambda request: requests.append(request.url))
    tab.page.click("#record")
    tab.page.evaluate("() => { window.until = window.socket.frame + 5; }")
    tab.wait_until("window.socket.frame > window.until")
    show(tab, TWO[0])
    tab.page.wait_for_timeout(3000)  # more than the gap that counts as in view
    assert tab.page.inner_text("#record").startswith("Finish 0:")
    tab.page.click("#record")
    tab.page.wait_for_selector("#summary[open]")

    rows = {row.split("\t")[0]: row.split("\t")[1:] for row in tab.page.inner_text("#summary-table").splitlines()}
    names = [name.strip() for name in rows["Seconds"]]
    one, two = (dict(zip(names, map(float, rows[f"Person {number}"]), strict=True)) for number in (1, 2))
    assert one["happiness"] == pytest.approx(one["in view"])
    assert two["anger"] == pytest.approx(two["in view"])
    assert two["in view"] < one["in view"], "person 2 left"
    assert tab.page.locator("#summary-plots canvas").count() == 2

    name, payload = tab.download("#summary-csv")
    assert name.endswith(".csv")
    table = list(csv.DictReader(io.StringIO(payload.decode("utf-8-sig"))))
    assert {row["person"] for row in table} == {"Person 1", "Person 2"}
    assert float(table[-1]["seconds"]) > float(table[0]["seconds"])
    assert sum(float(table[0][f"p_{label}"]) for label in LABELS) == pytest.approx(1, abs=0.01)

    session = json.loads(tab.download("#summary-json")[1])
    assert session["people"][0]["seconds"]["happiness"] == pytest.approx(one["happiness"], abs=0.06)
    assert len(session["rows"]) == len(table)

    name, payload = tab.download("#summary-video")
    video = tmp_path / name
    video.write_bytes(payload)
    assert requests == [], "nothing is sent anywhere"
    frames = _frames(video)
    assert len(frames) > 5
    assert cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FRAME_COUNT) > 5, "it states its duration"
    assert frames[0].shape == (480, 640, 3)
    orange = np.abs(frames[len(frames) // 2].astype(int) - HAPPINESS[::-1]).max(axis=2) < 40
    assert orange.sum() > 300, "the box of person 1"


def _frames(path: Path) -> list[Array]:
    """All frames of a video that OpenCV can decode."""
    capture, frames = cv2.VideoCapture(str(path)), list[Array]()
    while (read := capture.read())[0]:
        frames.append(read[1])
    return frames


def test_stopping_the_camera_ends_the_session_too(open_tab: Open) -> None:
    tab = open_tab(script=SCENE)
    show(tab)
    tab.page.click("#start")
    tab.page.wait_for_selector("#stage[data-state=live]")
    tab.page.click("#record")
    tab.page.click("#stop")
    tab.page.wait_for_selector("#summary[open]")
    assert "No face was in view" in tab.page.inner_text("#summary")
    tab.page.keyboard.press("Escape")
    assert tab.page.inner_text("#state-title") == "Camera off"


def test_a_recording_outlives_a_reload_until_it_is_saved(open_tab: Open, tmp_path: Path) -> None:
    tab = start_scene(open_tab(script=SCENE), TWO[0])
    tab.page.click("#record")
    tab.wait_until(STORED)
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.click("#unsaved-open")
    tab.page.wait_for_selector("#summary-plots h3")  # read from the browser's storage
    assert tab.page.locator("#summary-plots h3").all_inner_texts() == ["1\nPerson 1"]
    tab.page.click("#summary-close")
    assert tab.page.is_visible("#unsaved"), "closing is not deleting"
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.click("#unsaved-open")
    name, payload = tab.download("#summary-video")
    (tmp_path / name).write_bytes(payload)
    assert _frames(tmp_path / name)
    tab.page.click("#summary-close")
    tab.wait_until("document.getElementById('unsaved').hidden")
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.wait_for_timeout(200)
    assert tab.page.is_hidden("#unsaved")


def test_a_snapshot_equals_the_displayed_image(open_tab: Open) -> None:
    tab = start_scene(open_tab(script=SCENE), TWO[0])
    tab.page.wait_for_timeout(300)
    name, payload = tab.download("#snapshot")
    assert name.startswith("mien-")
    picture = decode(payload).astype(int)
    assert picture.shape == (480, 640, 3)
    _, columns = np.nonzero(np.abs(picture - HAPPINESS).max(axis=2) < 30)
    assert columns.min() > 320, "the camera is mirrored, and so is the snapshot"
