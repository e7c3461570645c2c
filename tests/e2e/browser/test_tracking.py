"""Who is who in the live view: numbers of people, as the service gives them."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from mien.app.inference.detect import Box
from mien.app.inference.pipeline import LabeledFace
from mien.app.inference.tracking import Tracker, TrackingRules, descriptor
from mien.data.contract import CROP_PX, LABELS, Array
from tests.browser import Tab
from tests.e2e.browser.scenes import TWO, heading, person, show, start_scene

pytestmark = pytest.mark.timeout(240)
# The people of the page for frames of [ms, faces], each: [number, label, uncertain, confidence].
TRACKED = """async ([frames, threshold]) => {
  const { Tracker } = await import('/page/core/tracker.js');
  const tracker = Object.assign(new Tracker(), { threshold });
  const shown = ({ track, label, uncertain, confidence }) => [track, label, uncertain, confidence];
  return frames.map(([at, faces]) => tracker.update(faces, at).map(shown));
}"""
# The descriptors of crops, each (112, 112, 3) as a list.
DESCRIPTORS = """async (crops) => {
  const { descriptorOf } = await import('/page/core/descriptor.js');
  const rgba = (crop) => crop.flatMap((row) => row.flatMap((pixel) => [...pixel, 255]));
  return crops.map((crop) => [...descriptorOf({ width: crop.length, data: rgba(crop) })]);
}"""
# How often faces are classified in frames of two people: five times one, twice the other, and that one 150 ms later.
KEPT = """async (crops) => {
  const { Follower } = await import('/page/core/follower.js');
  const [one, other] = crops.map((crop) =>
    ({ width: crop.length, data: crop.flatMap((row) => row.flatMap((pixel) => [...pixel, 255])) }));
  let calls = 0;
  const follower = new Follower({ assess: async () => [++calls] });
  const rows = [];
  for (const crop of [one, one, one, one, one, other, other]) rows.push(...(await follower.assess([crop])));
  await new Promise((done) => setTimeout(done, 150));
  return [...rows, ...(await follower.assess([other]))];
}"""


@pytest.mark.parametrize("how", ["connection", "pause"])
def test_people_keep_their_numbers_over_a_new_connection_or_a_pause(scene: Tab, how: str) -> None:
    tab = start_scene(scene, *TWO)
    tab.wait_until(heading(2))
    before = tab.page.evaluate("window.connections")
    if how == "pause":
        tab.page.click("#pause")
    show(tab, person(1, *(400, 100), sadness=0.9))  # the second person, whom the new connection calls number 1
    if how == "pause":
        tab.page.click("#pause")
    else:
        tab.page.evaluate("() => window.socket.fail()")
    tab.wait_until(f"window.connections === {before + 1} && document.querySelector('[data-person=\"1\"].away')")
    tab.wait_until("document.querySelector('[data-person=\"2\"] .face-label').textContent.includes('sadness')")


@pytest.mark.parametrize(
    ("frames", "numbers"),
    [
        ([[0, {1: 0.95}], [60, {1: 0.95, 2: 0.8}], [120, {1: 0.95, 3: 0.97}]], [[1], [1], [1, 2]]),
        ([[at, {1: 0.7}] for at in (0, 200, 400, 460)], [[], [], [1], [1]]),
        ([[0, {1: 0.7}], [100, {}], [200, {1: 0.7}], [500, {1: 0.7}], [600, {1: 0.7}]], [[], [], [], [], [1]]),
        ([[at, {1: 0.95}] for at in (0, 2500, 5000)], [[1], [1], [1]]),
        ([[0, {1: 0.95}], [60, {1: 0.3}], [120, {}], [180, {1: 0.3}]], [[1], [1], [], [1]]),
    ],
    ids=["brief", "unsure", "unsteady", "slow", "turned-away"],
)
def test_only_a_sure_or_lasting_detection_becomes_a_person(
    scene: Tab, frames: list[tuple[int, dict[int, float]]], numbers: object
) -> None:
    def face(place: int, score: float) -> dict[str, Any]:
        return person(0, 250 * place, 0) | {"detection_score": score}

    timed = [[at, [face(place, score) for place, score in scores.items()]] for at, scores in frames]
    people = scene.page.evaluate(TRACKED, [timed, 0.5])
    assert [[number for number, *_ in shown] for shown in people] == numbers


def test_the_page_tracks_and_smooths_as_the_service_does(scene: Tab) -> None:
    frames = [(number / 10, crossing(number)) for number in range(40) if not 18 <= number < 24]  # and a stall
    crops = [face.crop for face in frames[0][1]]
    page = scene.page
    assert np.allclose(page.evaluate(DESCRIPTORS, [crop.tolist() for crop in crops]), list(map(descriptor, crops)))
    shown = page.evaluate(TRACKED, [[[1000 * at_s, list(map(_sent, faces))] for at_s, faces in frames], 0.5])
    tracker = Tracker(threshold=0.5)
    for people, (at_s, faces) in zip(shown, frames, strict=True):
        expected = tracker.update(faces, at_s)
        assert [one[:3] for one in people] == [[one.track, one.label, one.uncertain] for one in expected]
        assert [one[3] for one in people] == pytest.approx([one.confidence for one in expected], abs=1e-5)
    assert {number for people in shown for number, *_ in people} == {1, 2, 3, 4}
    assert {number for number, *_ in shown[-1]} == {1, 2, 3}, "the third person has the old number again"
    assert page.evaluate("async () => (await import('/page/core/tracker.js')).RULES") == asdict(TrackingRules())


def test_in_local_mode_a_face_is_classified_again_after_a_while_or_if_it_looks_different(scene: Tab) -> None:
    crops = [face.crop.tolist() for face in crossing(0)]
    assert scene.page.evaluate(KEPT, crops) == [1, 1, 1, 1, 1, 2, 2, 3]


def crossing(number: int) -> tuple[LabeledFace, ...]:
    """Two people who pass each other while their expressions change, and one who goes and comes back half hidden."""
    random = np.random.default_rng(number)
    places = {0: 50 + 12 * number, 1: 530 - 12 * number} | ({2: 60 if number < 20 else 540} if number % 20 > 8 else {})
    hidden = max(0, 96 - 16 * (number - 29)) if number > 20 else 0
    return tuple(_face(who, x + random.normal(0, 2), random, hidden * (who == 2)) for who, x in places.items())


def _face(who: int, x: float, random: np.random.Generator, hidden: int) -> LabeledFace:
    cells: Array = (
        np.random.default_rng(who).uniform(40, 200, (8, 8, 3)).repeat(CROP_PX // 8, 0).repeat(CROP_PX // 8, 1)
    )
    crop = (cells * random.uniform(0.8, 1.2) + random.normal(0, 5, cells.shape)).clip(0, 255).astype(np.uint8)
    crop[:, :hidden] = 80
    probabilities = random.dirichlet([3.0 if place == who else 0.6 for place in range(len(LABELS))]).astype(np.float32)
    box = Box(x, 100 + 60.0 * who, 90.0, 90.0)
    points = np.zeros((5, 2), np.float32)
    return LabeledFace(box, points, 0.95, probabilities, LABELS[0], 0.9, uncertain=False, roll_degrees=0.0, crop=crop)


def _sent(face: LabeledFace) -> dict[str, Any]:
    values = descriptor(face.crop)
    assert values is not None
    probabilities = dict(zip(LABELS, map(float, face.probabilities), strict=True))
    return {
        "box": face.box_px._asdict(),
        "descriptor": values.tolist(),
        "detection_score": 1,  # a person at once, as in the service
        "probabilities": probabilities,
    }
