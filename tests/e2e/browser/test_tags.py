"""Tags on the picture and numbers of people."""

import pytest

from tests.e2e.browser.scenes import TWO, heading, person, show, start_scene
from tests.support.browser import Tab

pytestmark = pytest.mark.timeout(240)


# Pixels of the color of `neutral` that drawFaces leaves for a face, by certainty.
DRAWN = """async () => {
  const { drawFaces, landmarksIn } = await import('/page/ui/draw.js');
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


# The area that each tag of a group shares with each box, on a picture of a width.
GROUP = """async ([faces, width]) => {
  const { drawFaces, landmarksIn } = await import('/page/ui/draw.js');
  const { shared } = await import('/page/core/tags.js');
  const scale = width / 640;
  const scaled = ({ x, y, width = 0, height = 0 }) =>
    ({ x: x * scale, y: y * scale, width: width * scale, height: height * scale });
  const shown = faces.map((face) => ({ face, number: face.track, box: scaled(face.box),
    points: Object.fromEntries(Object.entries(face.landmarks).map(([name, point]) => [name, scaled(point)])) }));
  const context = Object.assign(document.createElement('canvas'), { width, height: width * 0.75 }).getContext('2d');
  const area = { x: 0, y: 0, width, height: width * 0.75 };
  return drawFaces(context, shown, { area }).map((place) => shown.map(({ box }) => shared(place, box)));
}"""


def test_tags_do_not_lie_on_other_faces_in_a_group(scene: Tab) -> None:
    group = [person(i + 1, 20 + 150 * (i % 4), 30 + 150 * (i // 4), side=85, anger=0.9) for i in range(12)]
    for phone, width in ((True, 336), (False, 1200)):
        tags = scene.page.evaluate(GROUP, [group, width])
        assert len(tags) == 12
        hidden = [(i, j) for i, places in enumerate(tags) for j, share in enumerate(places) if i != j and share > 0]
        assert not hidden, f"on a phone: {phone}"


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
