"""A page whose camera, stream and clock the test plays: people appear, move and leave without a model.

The clock stands still between steps, so that no test depends on the machine's speed.
"""

import json
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from playwright.sync_api import WebSocketRoute

from mien.app.inference.records import FACES, Landmarks
from tests.e2e.browser.conftest import Tab
from tests.support import labeled_face, upright_face

# Its frames are of one color, so that the tracker matches by position, and one comes whenever something is drawn.
CAMERA = """navigator.mediaDevices.getUserMedia = async () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: %d, height: %d });
  window.camera = canvas.getContext("2d", { alpha: false });
  return canvas.captureStream();
};
window.pictures = window.lookedAt = window.takenAt = 0; // pictures in memory, and times
const [make, { close }] = [createImageBitmap, ImageBitmap.prototype];
window.createImageBitmap = (...all) => (pictures++, window.takenAt = performance.now(), make(...all));
const { requestVideoFrameCallback: next } = HTMLVideoElement.prototype;
HTMLVideoElement.prototype.requestVideoFrameCallback = function (look) {
  next.call(this, () => { look(); window.lookedAt = performance.now(); });
};
ImageBitmap.prototype.close = function () { pictures--; close.call(this); };"""


def person(x: float, y: float, side: float = 120, **shares: float) -> dict[str, Any]:
    """A face of the stream with the given probabilities; the rest is spread evenly."""
    found = upright_face(x + side / 2, y + side / 2, side)
    face = replace(labeled_face((x, y, side, side), **shares), landmarks=Landmarks.of(found.landmarks_px))
    return dict(FACES.dump_python([face], mode="json")[0])


TWO = [person(60, 100, happiness=0.9), person(400, 100, anger=0.9)]


@dataclass
class Scene(Tab):
    """A tab in whose stream `people` are in view; the result of a frame comes after `delay_ms`."""

    camera_px: tuple[int, int] = (960, 720)
    people: list[dict[str, Any]] = field(default_factory=lambda: TWO)
    error: dict[str, str] | None = None
    delay_ms: float = 0
    now_ms: int = 0
    in_flight: list[tuple[float, int]] = field(default_factory=list)  # when the result is due, and the frame's number

    def __post_init__(self) -> None:
        super().__post_init__()
        self.page.add_init_script(CAMERA % self.camera_px)
        self.page.clock.install(time=0)
        self.page.clock.pause_at(1)
        self.page.route_web_socket("**/v1/stream", self._play)

    def _play(self, stream: WebSocketRoute) -> None:
        self.stream, self.in_flight, numbers = stream, [], count()

        def receive(frame: str | bytes) -> None:
            self.sent.append(bytes(frame))
            self.in_flight.append((self.now_ms + self.delay_ms, next(numbers)))
            self._send_results()

        stream.on_message(receive)

    def _send_results(self) -> None:
        while self.in_flight and self.in_flight[0][0] <= self.now_ms:
            result = {"frame": self.in_flight.pop(0)[1], "dropped": 0, "width": 640, "height": 480, "timings_ms": {}}
            self.stream.send(json.dumps(result | {"faces": self.people, "error": self.error}))

    def play(self) -> None:
        """Start the camera, and wait for a card."""
        self.page.click("#start")
        self.pass_until("document.querySelector('#faces .face-label:not(:empty)')")

    def pass_ms(self, ms: int) -> None:
        """Set the clock forward. Returns when the page has drawn, sent a frame if it may, and taken over its result."""
        self.now_ms += ms
        self.page.clock.fast_forward(ms)
        self._send_results()

        def is_done() -> bool:
            state = "[lookedAt === performance.now(), takenAt === performance.now(), pictures]"
            has_looked, has_taken, pictures = self.page.evaluate(f"camera.fillRect(0, 0, 960, 960), {state}")
            is_known = pictures <= 1 + len(self.in_flight)  # one is shown
            return has_looked and (has_taken or bool(self.in_flight)) and is_known

        self.wait_for(is_done, "no frame was sent, or some stay in memory")

    def pass_until(self, expression: str) -> None:
        """Let time pass until a JavaScript expression is true, at most 20 seconds of it."""
        for _ in range(100):
            self.pass_ms(200)
            if self.page.evaluate(f"Boolean({expression})"):
                return
        raise AssertionError(f"still false: {expression}")
