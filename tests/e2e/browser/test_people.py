"""People in the live view: identities, colors, tags, disappearing cards, and messages."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import BrowserType

from benchmarks import tracking
from mien.app.inference.pipeline import LabeledFace, build_pipeline
from mien.app.inference.tracking import Tracker, TrackingRules, descriptor
from mien.app.settings import load_settings
from mien.data.contract import LABELS
from tests.browser import ALLOWED, CAMERA, crossing_frames, launch, write_camera
from tests.e2e.browser.conftest import Open
from tests.e2e.browser.scenes import SCENE, TWO, person, show, start_scene

pytestmark = pytest.mark.timeout(240)
# Random scenes: tags that overlap, leave the picture, or lie on a mouth while it could be avoided.
PLACES = """async () => {
  const { placeTags, shared } = await import('/page/tags.js');
  const area = { x: 0, y: 0, width: 800, height: 600 };
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const bad = [];
  for (let scene = 0; scene < 300; scene++) {
    const tags = Array.from({ length: 1 + Math.floor(6 * random()) }, (_, key) => {
      const side = 40 + 260 * random();
      const box = { x: random() * 800 - side / 2, y: random() * 600 - side / 2, width: side, height: side };
      const mouth = { x: box.x + 0.3 * side, y: box.y + 0.68 * side, width: 0.4 * side, height: 0.24 * side };
      return { key, box, mouth, width: 90 + 60 * random(), height: 26 };
    });
    const places = placeTags(tags, area);
    places.forEach((one, index) => {
      const inside = one.x >= 0 && one.y >= 0 && one.x + one.width < 800.01 && one.y + one.height < 600.01;
      if (!inside) bad.push([scene, 'outside']);
      if (tags.some(({ mouth }) => shared(one, mouth))) bad.push([scene, 'mouth']);
      if (places.slice(0, index).some((other) => shared(one, other))) bad.push([scene, 'tags']);
    });
  }
  return bad;
}"""
# Pixels of a color that drawFaces leaves for a face: {person, label} by certainty.
DRAWN = """async () => {
  const { drawFaces, landmarksIn } = await import('/page/draw.js');
  const { personColor } = await import('/page/labels.js');
  const count = (face, number, color) => {
    const canvas = Object.assign(document.createElement('canvas'), { width: 640, height: 480 });
    const context = canvas.getContext('2d', { willReadFrequently: true });
    drawFaces(context, [{ face, number, box: face.box, points: landmarksIn(face, face.box) }],
      { unit: 2, area: { x: 0, y: 0, width: 640, height: 480 } });
    const probe = document.createElement('canvas').getContext('2d');
    probe.fillStyle = color;
    probe.fillRect(0, 0, 1, 1);
    const wanted = probe.getImageData(0, 0, 1, 1).data;
    const { data } = context.getImageData(0, 0, 640, 480);
    let found = 0;
    const same = (at) => [0, 1, 2].every((c) => Math.abs(data[at + c] - wanted[c]) < 3);
    for (let at = 0; at < data.length; at += 4) if (same(at)) found++;
    return found;
  };
  const face = window.people[0];
  const neutral = 'rgb(200 200 200)';
  return { sure: count(face, 2, neutral), uncertain: count({ ...face, uncertain: true }, 2, neutral),
    person: count(face, 2, personColor(2)), other: count(face, 2, personColor(1)) };
}"""


# The people of the page for frames of [ms, faces], each: [number, label, uncertain, confidence].
TRACKED = """async ([frames, threshold]) => {
  const { Tracker } = await import('/page/tracker.js');
  const tracker = Object.assign(new Tracker(), { threshold });
  const shown = ({ track, label, uncertain, confidence }) => [track, label, uncertain, confidence];
  return frames.map(([at, faces]) => tracker.update(faces, at).map(shown));
}"""
# The descriptors of crops, each (112, 112, 3) as a list.
DESCRIPTORS = """async (crops) => {
  const { descriptorOf } = await import('/page/tracker.js');
  const rgba = (crop) => crop.flatMap((row) => row.flatMap((pixel) => [...pixel, 255]));
  return crops.map((crop) => [...descriptorOf({ width: crop.length, data: rgba(crop) })]);
}"""


def heading(number: int) -> str:
    return (
        f"document.querySelector('[data-person=\"{number}\"]:not(.away) h3')?.textContent === '{number}Person {number}'"
    )


@pytest.mark.parametrize("how", ["connection", "pause", "tab"])
def test_people_keep_their_numbers_over_a_new_connection_or_a_pause(open_tab: Open, how: str) -> None:
    tab = start_scene(open_tab, *TWO)
    tab.wait_until(heading(2))
    toggle = {"pause": "#pause", "tab": "#tab-photos"}.get(how)
    if toggle:
        tab.page.click(toggle)
    show(tab, person(1, *(400, 100), sadness=0.9))  # the second person, whom the new connection calls number 1
    if toggle:
        tab.page.click("#tab-live" if how == "tab" else toggle)
    else:
        tab.page.evaluate("() => window.socket.fail()")
    tab.wait_until("window.connections === 2 && document.querySelector('[data-person=\"1\"].away')")
    tab.wait_until("document.querySelector('[data-person=\"2\"] .face-label').textContent.includes('sadness')")


def test_the_attention_map_of_an_earlier_camera_is_not_shown(open_tab: Open) -> None:
    tab = start_scene(open_tab, *TWO)
    tab.page.evaluate("""() => {
        const real = window.fetch;
        window.fetch = (path, ...rest) => path.includes('expressions')
          ? new Promise((done) => (window.respond = done)) : real(path, ...rest);
    }""")
    tab.page.evaluate("() => { document.getElementById('look').hidden = false; }")
    tab.page.click("#look")
    tab.page.click("#stop")
    tab.start_camera()
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
    overlay = f"{{media_type: 'image/png', base64: '{picture}'}}"
    body = f"{{images: [{{faces: [{{...window.people[0], explanation: {{overlay: {overlay}}}}}]}}]}}"
    tab.page.evaluate(f"() => window.respond({{ok: true, json: async () => ({body})}})")
    tab.wait_until("!document.getElementById('look').disabled")
    assert tab.page.locator(".attention").count() == 0


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
    open_tab: Open, frames: list[tuple[int, dict[int, float]]], numbers: object
) -> None:
    def face(place: int, score: float) -> dict[str, Any]:
        return person(0, 250 * place, 0) | {"detection_score": score}

    timed = [[at, [face(place, score) for place, score in scores.items()]] for at, scores in frames]
    people = open_tab().page.evaluate(TRACKED, [timed, 0.5])
    assert [[number for number, *_ in shown] for shown in people] == numbers


def test_number_and_color_of_a_person_are_on_box_and_card(open_tab: Open) -> None:
    tab = start_scene(open_tab, TWO[0])
    show(tab, person(2, 200, 150, side=200, neutral=0.9))
    card = tab.page.locator("[data-person='2']")
    assert card.locator("h3").inner_text().split() == ["2", "Person", "2"]
    shade = "getComputedStyle(document.querySelector(\"[data-person='2'] .chip\")).backgroundColor"
    assert tab.page.evaluate(shade) == "rgb(255, 143, 163)"
    drawn = tab.page.evaluate(DRAWN)
    assert drawn["person"] > 1000
    assert drawn["other"] == 0


def test_uncertain_and_neutral_look_different(open_tab: Open) -> None:
    tab = start_scene(open_tab, person(1, 200, 150, side=200, neutral=0.6))
    drawn = tab.page.evaluate(DRAWN)
    assert drawn["sure"] > 5 * max(drawn["uncertain"], 1), "a filled tag, or a hollow one"
    assert tab.page.inner_text(".face-label") == "neutral 60%" or "?" in tab.page.inner_text(".face-label")
    tab.page.click("#settings")
    for value, expected in ((90, True), (10, False)):
        tab.page.locator("#threshold").fill(str(value))
        uncertain = "document.querySelector('.face-label').classList.contains('uncertain')"
        tab.wait_until(uncertain if expected else f"!{uncertain}")
    assert tab.page.inner_text("#threshold-value") == "10%"


def test_the_page_tracks_and_smooths_as_the_service_does(open_tab: Open) -> None:
    pipeline, studio = build_pipeline(load_settings()), tracking.Studio()
    page = open_tab().page
    film = list(tracking.frames(tracking.SCENES[2], pipeline, studio))  # two people cross
    del film[12:18]  # a stall
    crops = [face.crop for face in film[0].faces]
    assert np.allclose(page.evaluate(DESCRIPTORS, [crop.tolist() for crop in crops]), list(map(descriptor, crops)))
    shown = page.evaluate(TRACKED, [[[1000 * frame.time_s, list(map(_sent, frame.faces))] for frame in film], 0.5])
    tracker = Tracker(threshold=0.5)
    for people, frame in zip(shown, film, strict=True):
        expected = tracker.update(frame.faces, frame.time_s)
        assert [one[:3] for one in people] == [[one.track, one.label, one.uncertain] for one in expected]
        assert [one[3] for one in people] == pytest.approx([one.confidence for one in expected], abs=1e-5)
    rules = page.evaluate("async () => (await import('/page/tracker.js')).RULES")
    assert rules == asdict(TrackingRules())


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


def test_tags_hide_neither_each_other_nor_a_mouth(open_tab: Open) -> None:
    tab = open_tab()
    assert tab.page.evaluate(PLACES) == []


def test_the_card_of_a_person_who_left_shrinks_and_disappears(open_tab: Open) -> None:
    tab = start_scene(open_tab, *TWO)
    tab.wait_until(heading(2))
    tall = tab.box("[data-person='2']")["height"]
    show(tab, TWO[0])
    tab.page.wait_for_selector("[data-person='2'].away")
    assert tab.box("[data-person='2']")["height"] < tall / 2.5
    assert "left" in tab.page.inner_text("[data-person='2']")
    tab.wait_until("document.querySelectorAll('.face').length === 1")


def test_the_stage_reports_that_no_face_is_in_view(open_tab: Open) -> None:
    tab = start_scene(open_tab, TWO[0])
    show(tab)
    tab.wait_until("document.getElementById('badge').textContent === 'No face in view'")
    assert tab.page.is_visible("#badge")
    show(tab, TWO[0])
    tab.wait_until("document.getElementById('badge').hidden")


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080), (768, 1024), (360, 740), (740, 360)], ids=str)
def test_controls_stay_on_screen_and_the_stage_does_not_jump(open_tab: Open, size: tuple[int, int]) -> None:
    tab = open_tab(script=SCENE, viewport={"width": size[0], "height": size[1]})
    before = tab.box("#stage")
    show(tab, *TWO)
    tab.start_camera()
    assert tab.box("#stage") == before
    for name in ("#fps", "#pause", "#stop", "#settings"):
        box = tab.box(name)
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
        assert box["y"] + box["height"] <= size[1], f"{name} is below the fold"
    tab.page.click("#pause")
    assert tab.box("#stage") == before
    tab.page.click("#stop")
    assert tab.box("#stage") == before


def test_a_card_shows_three_expressions_and_all_seven_on_demand(open_tab: Open) -> None:
    tab = start_scene(open_tab, TWO[1])
    rows = tab.page.locator(".face .bars li:visible")
    assert rows.count() == 3
    assert tab.page.locator(".face .bars li.lead").inner_text().startswith("anger")
    tab.page.click(".face .more")
    assert rows.count() == 7
    assert tab.page.get_attribute(".face .more", "aria-expanded") == "true"


def test_hovering_over_the_timeline_shows_the_probabilities(open_tab: Open) -> None:
    tab = start_scene(open_tab, TWO[1])
    tab.page.wait_for_timeout(1500)
    box = tab.box(".timeline")
    tab.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 10)
    tab.wait_until("document.querySelector('.tip').textContent.includes('anger 80%')")


def test_the_sample_clip_plays_with_one_click(open_tab: Open) -> None:
    tab = open_tab()
    tab.page.click("#sample-clip")
    tab.page.wait_for_selector(".face-label:not(:empty)", timeout=60_000)
    assert not tab.page.is_checked("#mirror"), "a video is not a mirror"
    tab.page.click("#stop")
    assert not tab.page.evaluate("document.getElementById('video').hasAttribute('src')")


def test_two_people_who_pass_each_other_keep_their_numbers(
    open_tab: Open, browsers: BrowserType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_camera(tmp_path_factory.mktemp("crossing") / "two.mjpeg", crossing_frames())
    with launch(browsers, CAMERA, ALLOWED, f"--use-file-for-fake-video-capture={path}") as crossing:
        tab = open_tab(inside=crossing)
        tab.start_camera()
        tab.wait_until(heading(2))
        label = "document.querySelector('[data-person~=\"{}\"] .face-label').textContent.split(' ')[0].replace('?', '')"
        before = [tab.page.evaluate(label.format(number)) for number in (1, 2)]
        assert before[0] != before[1]
        places = []
        for _ in range(40):
            tab.wait_for_results(2)
            assert tab.page.locator(".face").count() == 2, "nobody gets a third number"
            faces = {face["track"]: face["box"]["x"] for face in tab.faces()}
            if len(faces) == 2:
                places.append(faces[1] < faces[2])
            if len(set(places)) == 2 and places[-1] == places[-2] == places[-3]:
                break
            tab.page.wait_for_timeout(400)
        assert len(set(places)) == 2, "they have passed each other"
        tab.page.wait_for_timeout(1500)
        assert [tab.page.evaluate(label.format(number)) for number in (1, 2)] == before


EIGHT = """
  const ask = window.fetch;
  window.fetch = async (...request) => {
    const response = await ask(...request);
    if (!String(request[0]).endsWith("v1/models")) return response;
    const body = await response.json();
    body.models[0].labels.push("contempt");
    return Response.json(body);
  };
"""


def test_the_legend_names_the_expressions_of_the_served_model(open_tab: Open) -> None:
    seven, eight = (open_tab(script=script).page.locator("#legend li").all_text_contents() for script in ("", EIGHT))
    assert "contempt" not in seven
    assert eight == [*seven[:-1], "contempt", seven[-1]]
