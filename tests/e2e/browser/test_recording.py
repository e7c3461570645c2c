"""Recorded sessions: summary, CSV, JSON, annotated video and snapshot, all created in the browser."""

import csv
import io
import json
import re
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

    texts = tab.page.locator("#summary-people .quiet").all_inner_texts()[:2]
    shares = [re.findall(r"(\w+) ([\d.]+) s", text.split(";")[0]) for text in texts]
    assert [[label for label, _ in share] for share in shares] == [["happiness"], ["anger"]]
    seconds = [float(share[0][1]) for share in shares]
    assert texts[0].endswith(f"in view for {seconds[0]} s")
    assert seconds[1] < seconds[0], "person 2 left"
    people = tab.page.locator("#summary-people section").count()
    assert tab.page.locator("#summary-people canvas").count() == people
    assert tab.page.locator("#summary-people img.thumb").count() == people
    tab.page.click("#summary-people .episode >> nth=0")
    tab.wait_until("document.getElementById('summary-player').readyState > 0")

    tab.page.click("#summary-files summary")
    name, payload = tab.download("#summary-csv")
    assert name.endswith(".csv")
    table = list(csv.DictReader(io.StringIO(payload.decode("utf-8-sig"))))
    assert {row["person"] for row in table} == {"Person 1", "Person 2"}
    assert float(table[-1]["seconds"]) > float(table[0]["seconds"])
    assert sum(float(table[0][f"p_{label}"]) for label in LABELS) == pytest.approx(1, abs=0.01)

    tab.page.click("#summary-files summary")
    session = json.loads(tab.download("#summary-json")[1])
    assert session["people"][0]["seconds"]["happiness"] == pytest.approx(seconds[0], abs=0.06)
    assert len(session["rows"]) == len(table)

    tab.page.click("#summary-files summary")
    name, payload = tab.download("#summary-video")
    video = tmp_path / name
    video.write_bytes(payload)
    assert [address for address in requests if not address.startswith("blob:")] == [], "nothing is sent anywhere"
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


def test_a_snapshot_equals_the_picture_and_a_recording_outlives_a_reload_until_it_is_saved(
    open_tab: Open, tmp_path: Path
) -> None:
    tab = start_scene(open_tab(script=SCENE), TWO[0])
    tab.page.click("#record")
    name, payload = tab.download("#snapshot")
    assert name.startswith("mien-")
    picture = decode(payload).astype(int)
    assert picture.shape == (480, 640, 3)
    _, columns = np.nonzero(np.abs(picture - HAPPINESS).max(axis=2) < 30)
    assert columns.min() > 320, "the camera is mirrored, and so is the snapshot"
    tab.wait_until(STORED)
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.click("#unsaved-open")
    tab.page.wait_for_selector("#summary-people h3")  # read from the browser's storage
    assert tab.page.locator("#summary-people h3").all_inner_texts() == ["1\nPerson 1"]
    tab.page.click("#summary-close")
    assert tab.page.is_visible("#unsaved"), "closing is not deleting"
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.click("#unsaved-open")
    tab.page.click("#summary-files summary")
    name, payload = tab.download("#summary-video")
    (tmp_path / name).write_bytes(payload)
    assert _frames(tmp_path / name)
    tab.page.click("#summary-close")
    tab.wait_until("document.getElementById('unsaved').hidden")
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.wait_for_timeout(200)
    assert tab.page.is_hidden("#unsaved")
