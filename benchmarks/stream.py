"""Benchmark of webcam streaming: frame rate, latency, and their stability over time.

    python -m benchmarks.stream --json out/stream.json

This process is a client of `WS /v1/stream` on loopback; the service runs in its own process on the same cores. Frames
of 640x480 with one moving face are sent as the page sends them: at most two in flight, the second one half a round trip
after the first. Latency is the time from sending a frame to receiving its result; a browser adds a few milliseconds for
encoding and drawing. A leak shows in the memory of a long run (`--seconds 600`). Model, detector and device are set by
`MIEN_*` variables. Run it on an idle machine.
"""

import json
import math
import time
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import cv2
from websockets.sync.client import ClientConnection, connect

from benchmarks.harness import SAMPLES, benchmark_parser, publish
from benchmarks.load import percentiles_ms
from benchmarks.serving import service
from mien.data.contract import decode

FRAME_PX: Final = (640, 480)
IN_FLIGHT: Final = 2
_PHOTO_PX: Final = 760
_FRAMES: Final = 60
_QUALITY: Final = 80
_TIMEOUT_S: Final = 30.0


def camera() -> list[bytes]:
    """JPEG frames of 640x480 in which the sample portrait moves slightly."""
    photo = decode((SAMPLES / "astronaut.jpg").read_bytes())[:, :, ::-1]
    image = cv2.resize(photo, (_PHOTO_PX, _PHOTO_PX), interpolation=cv2.INTER_AREA)
    width, height = FRAME_PX
    frames = []
    for number in range(_FRAMES):
        angle = 2 * math.pi * number / _FRAMES
        x, y = round(60 + 40 * math.sin(angle)), round(40 + 30 * math.cos(angle))
        view = image[y : y + height, x : x + width]
        frames.append(cv2.imencode(".jpg", view, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes())
    return frames


def stream(socket_: ClientConnection, frames: Sequence[bytes], seconds: float) -> tuple[list[float], list[Any]]:
    """Send frames as the page does; returns the latencies in seconds, and the responses, in order."""
    start = time.perf_counter()
    waiting: deque[float] = deque()  # send times of frames without a result
    usual_s, source = 0.1, cycle(frames)
    latencies_s: list[float] = []
    responses: list[Any] = []
    while (now := time.perf_counter()) - start < seconds:
        wait_s = waiting[-1] + usual_s / 2 - now if waiting else 0.0
        if len(waiting) < IN_FLIGHT and wait_s <= 0:
            socket_.send(next(source))
            waiting.append(now)
            continue
        try:
            response = json.loads(socket_.recv(timeout=_TIMEOUT_S if len(waiting) == IN_FLIGHT else wait_s))
        except TimeoutError:
            if len(waiting) < IN_FLIGHT:
                continue
            raise SystemExit(f"no result within {_TIMEOUT_S:g} s") from None
        if response["error"] is not None:
            raise SystemExit(f"the service rejected a frame: {response['error']['detail']}")
        latencies_s.append(time.perf_counter() - waiting.popleft())
        responses.append(response)
        usual_s += 0.2 * (latencies_s[-1] - usual_s)
    return latencies_s, responses


def measure(seconds: float) -> dict[str, Any]:
    """Start a service, warm it up and stream for `seconds`."""
    frames = camera()
    with service() as running:
        url = f"ws://127.0.0.1:{running.port}/v1/stream"
        with connect(url, compression=None) as socket_:
            stream(socket_, frames, seconds=2.0)
        memory = running.memory_mb()
        with connect(url, compression=None) as socket_:
            latencies_s, responses = stream(socket_, frames, seconds)
        return {
            "frames_per_s": round(len(responses) / seconds, 2),
            **percentiles_ms(latencies_s),
            "frames": len(responses),
            "frames_with_a_face": sum(bool(response["faces"]) for response in responses),
            "dropped": responses[-1]["dropped"],
            "memory_first_mb": memory,
            "memory_last_mb": running.memory_mb(),
            **{name: running.ready[name] for name in ("model", "provider", "precision", "detector")},
        }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    publish(measure(options.seconds), options.json)


if __name__ == "__main__":
    main()
