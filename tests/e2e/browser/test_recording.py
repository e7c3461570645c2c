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
    tab.page.click("#record")
    tab.page.wait_for_selector("#summary[open]")

    tab.page.click("#summary-files summary")
    table = list(csv.DictReader(io.StringIO(tab.download("#summary-csv")[1].decode("utf-8-sig"))))
    assert {row["person"] for row in table} == {"Person 1", "Person 2"}
    assert sum(float(table[0][f"p_{label}"]) for label in LABELS) == pytest.approx(1, abs=0.01)

    tab.page.click("#summary-files summary")
    session = json.loads(tab.download("#summary-json")[1])
    happy, angry = (person["seconds"] for person in session["people"])
    assert (max(happy, key=happy.get), max(angry, key=angry.get)) == ("happiness", "anger")
    assert angry["anger"] < happy["happiness"], "person 2 left"
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


def test_a_snapshot_equals_the_picture_and_a_recording_outlives_a_reload_until_it_is_saved(
    open_tab: Open, tmp_path: Path
) -> None:
    tab = start_scene(open_tab(script=SCENE), TWO[0])
    tab.page.click("#record")
    _, payload = tab.download("#snapshot")
    picture = decode(payload).astype(int)
    assert picture.shape == (480, 640, 3)
    _, columns = np.nonzero(np.abs(picture - HAPPINESS).max(axis=2) < 30)
    assert columns.min() > 320, "the camera is mirrored, and so is the snapshot"
    tab.wait_until(STORED)
    tab.page.reload()
    tab.wait_until_ready()
    tab.page.click("#unsaved-open")
    tab.page.wait_for_selector("#summary-people h3")  # read from the browser's storage
    tab.page.click("#summary-files summary")
    name, payload = tab.download("#summary-video")
    (tmp_path / name).write_bytes(payload)
    assert _frames(tmp_path / name)
    tab.page.click("#summary-close")
    tab.wait_until("document.getElementById('unsaved').hidden")
