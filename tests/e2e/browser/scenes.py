"""A page whose stream the test plays: people appear, move and leave without a model.

`SCENE` replaces WebSocket: each frame is answered with the faces in `window.people` after `window.delay` ms.
"""

import json
from typing import Any

from mien.data.contract import LABELS
from tests.support.browser import Tab

SCENE = """
window.connections = 0;
window.people = [];
window.delay = 15;
window.problem = null;
window.WebSocket = class extends EventTarget {
  static OPEN = 1;
  constructor() {
    super();
    Object.assign(this, { readyState: 0, bufferedAmount: 0, frame: 0 });
    window.connections++;
    window.socket = this;
    setTimeout(() => { this.readyState = 1; this.onopen?.({}); }, 10);
  }
  send() {
    const frame = this.frame++;
    const faces = window.people.map((one) => ({...one}));
    setTimeout(() => this.readyState === 1 && this.onmessage?.({ data: JSON.stringify(
      { frame, dropped: 0, width: 640, height: 480, faces, timings_ms: {}, error: window.problem }) }), window.delay);
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
window.createImageBitmap = (source, ...rest) =>
  bitmap(source instanceof HTMLCanvasElement ? blankOf(source) : source, ...rest);
"""


def person(x: float, y: float, side: float = 120, **shares: float) -> dict[str, Any]:
    """A face of the stream with the given probabilities; the rest is spread evenly."""
    rest = (1 - sum(shares.values())) / (len(LABELS) - len(shares))
    probabilities = {label: shares.get(label, rest) for label in LABELS}
    label = max(probabilities, key=lambda name: probabilities[name])
    points = {"left_eye": (0.3, 0.4), "right_eye": (0.7, 0.4), "nose": (0.5, 0.6)}
    points |= {"left_mouth": (0.35, 0.8), "right_mouth": (0.65, 0.8)}
    return {
        "detection_score": 0.95,
        "box": {"x": x, "y": y, "width": side, "height": side},
        "landmarks": {name: {"x": x + side * dx, "y": y + side * dy} for name, (dx, dy) in points.items()},
        "label": label,
        "confidence": probabilities[label],
        "uncertain": False,
        "reasons": [],
        "probabilities": probabilities,
    }


TWO = (person(60, 100, happiness=0.9), person(400, 100, anger=0.9))


def show(tab: Tab, *people: object) -> None:
    """Let exactly these people be in view from the next frame on."""
    tab.page.evaluate(f"() => {{ window.people = {json.dumps(people)}; }}")


def start_scene(tab: Tab, *people: object) -> Tab:
    """Start the camera of a page with SCENE anew, with these people in view."""
    if tab.page.is_visible("#stop"):
        tab.page.click("#stop")
    show(tab, *people)
    tab.start_camera()
    return tab


def heading(number: int) -> str:
    """JavaScript: whether a person in view has this number."""
    card = f"document.querySelector('[data-person=\"{number}\"]:not(.away) .name')"
    return f"{card}?.textContent === '{number}Person {number}'"
