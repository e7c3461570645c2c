"""People in the live view: identities, tags, cards, and the correction for a neutral face."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import BrowserType

from mien.app.inference.detect import Box
from mien.app.inference.pipeline import LabeledFace
from mien.app.inference.tracking import Tracker, TrackingRules, descriptor
from mien.data.contract import CROP_PX, LABELS, Array
from tests.browser import ALLOWED, CAMERA, Tab, crossing_frames, launch, write_camera
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
# Pixels of the color of `neutral` that drawFaces leaves for a face, by certainty.
DRAWN = """async () => {
  const { drawFaces, landmarksIn } = await import('/page/draw.js');
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
  return { sure: count(face, 2, neutral), uncertain: count({ ...face, uncertain: true }, 2, neutral) };
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
# The color in the middle of a card's picture: frames are red, but the video shows something else by now.
THUMB = """async (face) => {
  const { People } = await import('/page/people.js');
  const people = new People(...['ul', 'p', 'ul'].map((name) => document.createElement(name)));
  const frame = Object.assign(document.createElement('canvas'), { width: 640, height: 480 });
  Object.assign(frame.getContext('2d'), { fillStyle: '#f00' }).fillRect(0, 0, 640, 480);
  people.update([face], 1000, frame);
  people.refresh(1000, 0);
  return [...people.list.querySelector('.thumb').getContext('2d').getImageData(56, 56, 1, 1).data].slice(0, 3);
}"""
# The area that each tag of a group shares with each box, on a picture of a width.
GROUP = """async ([faces, width]) => {
  const { drawFaces, landmarksIn } = await import('/page/draw.js');
  const { shared } = await import('/page/tags.js');
  const scale = width / 640;
  const scaled = ({ x, y, width = 0, height = 0 }) =>
    ({ x: x * scale, y: y * scale, width: width * scale, height: height * scale });
  const shown = faces.map((face) => ({ face, number: face.track, box: scaled(face.box),
    points: Object.fromEntries(Object.entries(face.landmarks).map(([name, point]) => [name, scaled(point)])) }));
  const context = Object.assign(document.createElement('canvas'), { width, height: width * 0.75 }).getContext('2d');
  const area = { x: 0, y: 0, width, height: width * 0.75 };
  return drawFaces(context, shown, { area }).map((place) => shown.map(({ box }) => shared(place, box)));
}"""
# The numbers of cards after a person has been seen, 9 s later, and 11 s later.
CARDS = """async (face) => {
  const { People } = await import('/page/people.js');
  const people = new People(...['ul', 'p', 'ul'].map((name) => document.createElement(name)));
  return [[[face], 0], [[], 9000], [[], 11000]].map(([faces, now]) => {
    people.update(faces, now);
    people.refresh(1000 + now, 0);
    return people.list.children.length;
  });
}"""


def heading(number: int) -> str:
    return (
        f"document.querySelector('[data-person=\"{number}\"]:not(.away) h3')?.textContent === '{number}Person {number}'"
    )


@pytest.fixture(scope="module")
def scene(open_shared: Open) -> Tab:
    """A page whose stream the tests play; start_scene starts it anew."""
    return open_shared(script=SCENE)


@pytest.mark.parametrize("how", ["connection", "pause", "tab"])
def test_people_keep_their_numbers_over_a_new_connection_or_a_pause(scene: Tab, how: str) -> None:
    tab = start_scene(scene, *TWO)
    tab.wait_until(heading(2))
    before = tab.page.evaluate("window.connections")
    toggle = {"pause": "#pause", "tab": "#tab-photos"}.get(how)
    if toggle:
        tab.page.click(toggle)
    show(tab, person(1, *(400, 100), sadness=0.9))  # the second person, whom the new connection calls number 1
    if toggle:
        tab.page.click("#tab-live" if how == "tab" else toggle)
    else:
        tab.page.evaluate("() => window.socket.fail()")
    tab.wait_until(f"window.connections === {before + 1} && document.querySelector('[data-person=\"1\"].away')")
    tab.wait_until("document.querySelector('[data-person=\"2\"] .face-label').textContent.includes('sadness')")


def test_the_attention_map_of_an_earlier_camera_is_not_shown(open_tab: Open) -> None:
    tab = start_scene(open_tab(script=SCENE), *TWO)
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
    scene: Tab, frames: list[tuple[int, dict[int, float]]], numbers: object
) -> None:
    def face(place: int, score: float) -> dict[str, Any]:
        return person(0, 250 * place, 0) | {"detection_score": score}

    timed = [[at, [face(place, score) for place, score in scores.items()]] for at, scores in frames]
    people = scene.page.evaluate(TRACKED, [timed, 0.5])
    assert [[number for number, *_ in shown] for shown in people] == numbers


def test_the_picture_of_a_card_is_cut_from_the_frame_of_its_label(scene: Tab) -> None:
    tab = start_scene(scene, TWO[0])
    tab.wait_until(heading(1))
    assert tab.page.evaluate(THUMB, TWO[0]) == [255, 0, 0]


def test_tags_do_not_lie_on_other_faces_in_a_group(scene: Tab) -> None:
    group = [person(i + 1, 20 + 150 * (i % 4), 30 + 150 * (i // 4), side=85, anger=0.9) for i in range(12)]
    for phone, width in ((True, 336), (False, 1200)):
        tags = scene.page.evaluate(GROUP, [group, width])
        assert len(tags) == 12
        hidden = [(i, j) for i, places in enumerate(tags) for j, share in enumerate(places) if i != j and share > 0]
        assert not hidden, f"on a phone: {phone}"


def test_more_than_four_people_have_compact_cards(scene: Tab) -> None:
    group = [person(i + 1, 20 + 150 * (i % 4), 30 + 150 * (i // 4), side=85, anger=0.9) for i in range(6)]
    tab = start_scene(scene, *group)
    tab.wait_until("document.querySelectorAll('#faces.compact .face').length === 6")
    compact = tab.box("[data-person='1']")["height"]
    tab.page.click("[data-person='1'] .more")
    assert tab.page.locator("[data-person='1'] .bars li:visible").count() == 7
    assert compact < 70 < tab.box("[data-person='1']")["height"]


def test_bars_are_visible_at_a_zoom_of_200_percent(open_tab: Open) -> None:
    tab = start_scene(open_tab(script=SCENE, viewport={"width": 640, "height": 360}), *TWO)
    widths = tab.page.eval_on_selector_all(
        ".bars li:not([hidden]) .track", "all => all.map((one) => one.getBoundingClientRect().width)"
    )
    assert len(widths) == 6
    assert min(widths) > 20
    clipped = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"
    assert tab.page.eval_on_selector_all(".bars .value", clipped) == []


def test_cards_do_not_look_live_while_nothing_arrives(scene: Tab) -> None:
    tab = start_scene(scene, TWO[0])
    stale = "document.getElementById('faces').classList.contains('stale')"
    assert not tab.page.evaluate(stale)
    tab.page.evaluate("() => window.socket.fail()")
    assert tab.page.evaluate(stale)
    tab.wait_until(f"!{stale}")


def test_a_resting_face_is_neutral_after_a_correction_that_can_be_undone(scene: Tab) -> None:
    tab = start_scene(scene, person(1, 60, 100, sadness=0.6, neutral=0.3))
    label = "document.querySelector('.face-label')"
    tab.wait_until(f"{label}.textContent.includes('sadness')")
    tab.page.click(".neutral")
    tab.wait_until(f"/^neutral[?]?[*]/.test({label}.textContent)")
    show(tab, person(1, 60, 100, sadness=0.95, neutral=0.02))
    tab.wait_until(f"/^sadness[?]?[*]/.test({label}.textContent)")
    show(tab, person(1, 60, 100, sadness=0.6, neutral=0.3))
    tab.wait_until(f"/^neutral[?]?[*]/.test({label}.textContent)")
    tab.page.click(".neutral")
    tab.wait_until(f"/^sadness[?]? /.test({label}.textContent)")


def test_the_card_says_what_a_person_can_do_for_a_better_label(scene: Tab) -> None:
    show(scene, person(1, 200, 150, side=22, happiness=0.9) | {"reasons": ["small", "dark"]})
    scene.wait_until("document.querySelector('.hint')?.textContent === 'Move closer: the face is 22 pixels wide'")
    show(scene, person(1, 200, 150, side=22, happiness=0.4, neutral=0.39))
    scene.wait_until("document.querySelector('.hint').textContent.includes('neutral')")
    show(scene, person(1, 200, 150, side=22, happiness=0.9))
    scene.wait_until("document.querySelector('.hint').hidden")


def test_uncertain_and_neutral_look_different(scene: Tab) -> None:
    tab = start_scene(scene, person(1, 200, 150, side=200, neutral=0.6))
    drawn = tab.page.evaluate(DRAWN)
    assert drawn["sure"] > 2 * max(drawn["uncertain"], 1), "a filled tag, or a hollow one"
    assert tab.page.inner_text(".face-label") == "neutral 60%" or "?" in tab.page.inner_text(".face-label")
    tab.page.click("#settings")
    for value, expected in ((90, True), (10, False)):
        tab.page.locator("#threshold").fill(str(value))
        uncertain = "document.querySelector('.face-label').classList.contains('uncertain')"
        tab.wait_until(uncertain if expected else f"!{uncertain}")
    assert tab.page.inner_text("#threshold-value") == "10%"


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
    assert {number for people in shown for number, *_ in people} == {1, 2, 3}
    assert page.evaluate("async () => (await import('/page/tracker.js')).RULES") == asdict(TrackingRules())


def crossing(number: int) -> tuple[LabeledFace, ...]:
    """Frame `number` of two people who pass each other while their expressions change, and one who comes and goes."""
    random = np.random.default_rng(number)
    places = {0: 50 + 12 * number, 1: 530 - 12 * number} | ({2: 300 - 4 * number} if number % 20 > 8 else {})
    return tuple(_face(who, x + random.normal(0, 2), random) for who, x in places.items())


def _face(who: int, x: float, random: np.random.Generator) -> LabeledFace:
    cells: Array = (
        np.random.default_rng(who).uniform(40, 200, (8, 8, 3)).repeat(CROP_PX // 8, 0).repeat(CROP_PX // 8, 1)
    )
    crop = (cells * random.uniform(0.8, 1.2) + random.normal(0, 5, cells.shape)).clip(0, 255).astype(np.uint8)
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


def test_tags_hide_neither_each_other_nor_a_mouth(scene: Tab) -> None:
    assert scene.page.evaluate(PLACES) == []


def test_the_card_of_a_person_who_left_shrinks_and_disappears(scene: Tab) -> None:
    tab = start_scene(scene, *TWO)
    tab.wait_until(heading(2))
    tall = tab.box("[data-person='2']")["height"]
    show(tab, TWO[0])
    tab.page.wait_for_selector("[data-person='2'].away")
    assert tab.box("[data-person='2']")["height"] < tall / 2.5
    assert "left" in tab.page.inner_text("[data-person='2']")
    assert tab.page.evaluate(CARDS, TWO[0]) == [1, 1, 0]


def test_the_stage_reports_that_no_face_is_in_view(scene: Tab) -> None:
    tab = start_scene(scene, TWO[0])
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


def test_a_card_shows_three_expressions_and_all_seven_on_demand(scene: Tab) -> None:
    tab = start_scene(scene, TWO[1])
    assert tab.page.inner_text(".face h3").split() == ["1", "Person", "1"]
    rows = tab.page.locator(".face .bars li:visible")
    assert rows.count() == 3
    assert tab.page.inner_text(".face .bars li.lead") == "", "the label above the bar says it"
    tab.page.click(".face .more")
    assert rows.count() == 7
    assert tab.page.get_attribute(".face .more", "aria-expanded") == "true"


def test_hovering_over_the_timeline_shows_the_probabilities(scene: Tab) -> None:
    tab = start_scene(scene, TWO[1])
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
    path = write_camera(tmp_path_factory.mktemp("crossing") / "two.mjpeg", crossing_frames(240))
    with launch(browsers, CAMERA, ALLOWED, f"--use-file-for-fake-video-capture={path}") as crossing:
        tab = open_tab(inside=crossing)
        tab.start_camera()
        tab.wait_until(heading(2))
        places: set[bool] = set()
        for _ in range(60):
            tab.wait_for_results(1)
            assert tab.page.locator(".face").count() == 2, "nobody gets a third number"
            faces = {face["track"]: face["box"]["x"] for face in tab.faces()}
            places |= {faces[1] < faces[2]} if len(faces) == 2 else set()
            if len(places) == 2:
                break
            tab.page.wait_for_timeout(100)
        assert len(places) == 2, "they have passed each other"
        tab.page.wait_for_timeout(300)
        assert tab.page.locator(".face").count() == 2


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
