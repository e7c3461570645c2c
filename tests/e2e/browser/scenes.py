"""A page whose stream and clock the test plays: people appear, move and leave without a model.

`SCENE` replaces WebSocket: each frame is answered with the faces in `window.people` after `window.delay` ms of the
page's clock. That clock stands still, and `pass_ms` sets it forward, so that no test depends on the machine's speed.
"""

import json
from dataclasses import replace
from typing import Any

from mien.app.inference.records import FACES, Landmarks
from tests.support import labeled_face, upright_face
from tests.support.browser import WAIT_MS, Tab

SCENE = """
const [clock, drawNext] = [performance.now.bind(performance), window.requestAnimationFrame.bind(window)];
performance.now = () => window.stoppedAt ?? clock();
let isWorking = () => false; // then nothing is drawn, so that the next drawing shows all results
window.requestAnimationFrame = (draw) => drawNext(function next() {
  if (isWorking()) drawNext(next);
  else draw(performance.now());
});

window.people = [];
window.problem = null;
window.delay = 0;
let pending = []; // results: {due, deliver}
setInterval(() => {
  const due = pending.filter((result) => result.due <= performance.now());
  pending = pending.filter((result) => !due.includes(result));
  for (const { deliver } of due) deliver();
}, 5);
window.WebSocket = class extends EventTarget {
  static OPEN = 1;
  constructor() {
    super();
    Object.assign(this, { readyState: 0, bufferedAmount: 0, frame: 0 });
    window.socket = this;
    setTimeout(() => { this.readyState = 1; this.onopen?.({}); }, 10);
  }
  send() {
    window.busy--;
    const data = JSON.stringify({ frame: this.frame++, dropped: 0, width: 640, height: 480,
      faces: window.people, timings_ms: {}, error: window.problem });
    const deliver = () => this.readyState === 1 && this.onmessage?.({ data });
    pending.push({ due: performance.now() + window.delay, deliver });
  }
  close() { this.readyState = 3; }
  fail() { this.readyState = 3; this.onclose?.({}); }
};
// The camera shows none of these people: the tracker gets blank pictures, and matches by position.
const bitmap = window.createImageBitmap;
const blankOf = ({ width, height }) => {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").fillRect(0, 0, width, height);
  return canvas;
};
window.busy = 0; // frames that are not sent yet, and pictures of frames that are not there yet
window.pictures = 0; // in memory
window.createImageBitmap = async (source, ...rest) => {
  window.busy += 2;
  window.pictures++;
  const picture = await bitmap(source instanceof HTMLCanvasElement ? blankOf(source) : source, ...rest);
  window.busy--;
  return picture;
};
const { close } = ImageBitmap.prototype;
ImageBitmap.prototype.close = function () { window.pictures--; close.call(this); };
let looks = 0; // of the page at a frame of the video
const look = HTMLVideoElement.prototype.requestVideoFrameCallback;
HTMLVideoElement.prototype.requestVideoFrameCallback = function (then) {
  return look.call(this, (...given) => { then(...given); looks++; });
};
window.pass = async (ms) => {
  window.stoppedAt += ms;
  const enough = looks + 2;
  isWorking = () => looks < enough || window.busy > 0 || pending.some(({ due }) => due <= performance.now());
  while (isWorking()) await new Promise((done) => setTimeout(done, 5));
  for (let draws = 0; draws < 2; draws++) await new Promise(window.requestAnimationFrame);
};
"""


def person(x: float, y: float, side: float = 120, **shares: float) -> dict[str, Any]:
    """A face of the stream with the given probabilities; the rest is spread evenly."""
    found = upright_face(x + side / 2, y + side / 2, side)
    face = replace(labeled_face((x, y, side, side), **shares), landmarks=Landmarks.of(found.landmarks_px))
    return dict(FACES.dump_python([face], mode="json")[0])


TWO = (person(60, 100, happiness=0.9), person(400, 100, anger=0.9))


def show(tab: Tab, *people: object) -> None:
    """Let exactly these people be in view from the next frame on."""
    tab.page.evaluate(f"() => {{ window.people = {json.dumps(people)}; }}")


def start_scene(tab: Tab, *people: object) -> Tab:
    """Start the camera of a page with SCENE, with these people in view; from now on, the clock stands still."""
    show(tab, *people)
    tab.page.evaluate("() => { window.stoppedAt = performance.now(); }")
    tab.page.click("#start")
    tab.page.wait_for_selector("#stage[data-state=live]", timeout=WAIT_MS)
    pass_until(tab, "document.querySelector('#faces .face-label:not(:empty)')")
    return tab


def pass_ms(tab: Tab, ms: int) -> None:
    """Set a stopped clock forward. Returns when the page has labeled a frame, if it may, and drawn."""
    tab.page.evaluate("(ms) => window.pass(ms)", ms)


def pass_until(tab: Tab, expression: str) -> None:
    """Let time of a stopped clock pass until a JavaScript expression is true, at most 20 seconds of it."""
    for _ in range(100):
        pass_ms(tab, 200)
        if tab.page.evaluate(f"Boolean({expression})"):
            return
    raise AssertionError(f"still false: {expression}")
