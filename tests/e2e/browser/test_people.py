"""People in the live view: identities, colors, tags, disappearing cards, and messages."""

import numpy as np
import pytest
from playwright.sync_api import BrowserType

from mien.app.inference.detect import Box
from mien.app.inference.pipeline import LabeledFace
from mien.app.inference.tracking import Tracker
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


# What the page shows of a list of [ms, probabilities], one face: [label, uncertain, confidence] for each.
STEADY = """async ([frames, threshold]) => {
  const { Steady } = await import('/page/steady.js');
  const steady = Object.assign(new Steady(), { threshold });
  return frames.map(([at, probabilities]) => {
    const [face] = steady.update([{ track: 1, detection_score: 0.95, probabilities }], at);
    return [face.label, face.uncertain, face.confidence];
  });
}"""

# The numbers of the people on the page for a list of [ms, {track: score}], for each.
NUMBERS = """async (frames) => {
  const { Steady } = await import('/page/steady.js');
  const { LABELS } = await import('/page/labels.js');
  const probabilities = Object.fromEntries(LABELS.map((label) => [label, 1 / 7]));
  const steady = new Steady();
  return frames.map(([at, scores]) => {
    const seen = ([track, score]) => ({ track: Number(track), detection_score: score, probabilities });
    const faces = Object.entries(scores).map(seen);
    return steady.update(faces, at).map((face) => face.track);
  });
}"""


def heading(number: int) -> str:
    return (
        f"document.querySelector('[data-person=\"{number}\"]:not(.away) h3')?.textContent === '{number}Person {number}'"
    )


def test_a_new_connection_starts_without_people_and_shows_a_message(open_tab: Open) -> None:
    tab = start_scene(open_tab, *TWO)
    tab.wait_until(heading(2))
    tab.page.wait_for_timeout(3000)
    show(tab, person(1, 400, 100, sadness=0.9))  # the other person is number 1 now
    tab.page.evaluate("() => window.socket.fail()")
    tab.wait_until("window.connections === 2 && document.querySelectorAll('.face').length === 1")
    assert "numbered from 1 again" in tab.page.inner_text("#badge")
    tab.wait_until("document.querySelector('.timeline').ariaLabel?.includes('sadness')")
    assert "happiness" not in (tab.page.get_attribute(".timeline", "aria-label") or ""), "nobody inherits a timeline"


@pytest.mark.parametrize("how", ["pause", "tab"])
def test_a_pause_or_another_tab_also_starts_without_people(open_tab: Open, how: str) -> None:
    tab = start_scene(open_tab, *TWO)
    tab.wait_until(heading(2))
    tab.page.click("#pause" if how == "pause" else "#tab-photos")
    show(tab, person(1, 400, 100, sadness=0.9))
    tab.page.click("#pause" if how == "pause" else "#tab-live")
    tab.wait_until("window.connections === 2 && document.querySelectorAll('.face').length === 1")
    assert "sadness" in tab.page.inner_text(".face-label")
    assert "numbered from 1 again" in tab.page.inner_text("#badge")


def test_the_attention_map_of_an_earlier_connection_is_not_shown(open_tab: Open) -> None:
    tab = start_scene(open_tab, *TWO)
    tab.page.evaluate("""() => {
        const real = window.fetch;
        window.fetch = (path, ...rest) => path.includes('expressions')
          ? new Promise((done) => (window.respond = done)) : real(path, ...rest);
    }""")
    tab.page.evaluate("() => { document.getElementById('look').hidden = false; }")
    tab.page.click("#look")
    tab.page.evaluate("() => window.socket.fail()")
    tab.wait_until("window.connections === 2 && document.querySelectorAll('.face').length === 2")
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
def test_only_a_sure_or_lasting_detection_becomes_a_person(open_tab: Open, frames: object, numbers: object) -> None:
    assert open_tab().page.evaluate(NUMBERS, frames) == numbers


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


def test_the_page_smooths_as_the_service_does(open_tab: Open) -> None:
    shares = np.random.default_rng(3).dirichlet(np.full(7, 0.6), 25).repeat(8, axis=0).astype(np.float32)
    tracker = Tracker(threshold=0.5)
    box, points = Box(0, 0, 80, 80), np.zeros((5, 2), np.float32)
    expected = []
    for number, row in enumerate(shares):
        face = LabeledFace(box, points, 0.9, row, LABELS[int(row.argmax())], float(row.max()), False, 0.0)
        expected.append(tracker.update((face,), number / 15)[0])
    tab = open_tab()
    frames = [
        [1000 * number / 15, dict(zip(LABELS, map(float, row), strict=True))] for number, row in enumerate(shares)
    ]
    found = tab.page.evaluate(STEADY, [frames, 0.5])
    assert [(label, uncertain) for label, uncertain, _ in found] == [(one.label, one.uncertain) for one in expected]
    assert [value for _, _, value in found] == pytest.approx([one.confidence for one in expected], abs=1e-6)


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
