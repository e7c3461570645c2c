"""Benchmark of webcam streaming: frame rate, latency, and their stability over time.

    python -m benchmarks.stream --json out/stream.json
    python -m benchmarks.stream --seconds 600 --rate 15 --json out/stream.json

This process is a client of `WS /v1/stream` on loopback; the service runs in its own process on the same cores. Frames
of 640x480 with one moving face are sent as the page sends them: at most two in flight, the second one half a round trip
after the first. `--rate` limits the frame rate, as a camera does. Latency is the time from sending a frame to receiving
its result; a browser adds a few milliseconds for encoding and drawing. A growing queue shows in the latency of the last
tenth of the frames, a leak in the memory. Model, detector and device are set by `MIEN_*` variables. Run it on an idle
machine.
"""

import json
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import cv2
from websockets.sync.client import ClientConnection, connect

from benchmarks.load import percentile
from benchmarks.results import benchmark_parser, publish
from benchmarks.serving import service
from mien.data.contract import decode

FRAME_PX: Final = (640, 480)
IN_FLIGHT: Final = 2
_PHOTO: Final = Path(__file__).resolve().parent.parent / "samples" / "photos" / "astronaut.jpg"
_PHOTO_PX: Final = 760
_FRAMES: Final = 60
_QUALITY: Final = 80
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class FrameResult:
    """Latency of a result, its number of faces, and frames dropped so far."""

    latency_s: float
    faces: int
    dropped: int


def camera() -> list[bytes]:
    """JPEG frames of 640x480 in which the sample portrait moves slightly."""
    image = cv2.resize(decode(_PHOTO.read_bytes())[:, :, ::-1], (_PHOTO_PX, _PHOTO_PX), interpolation=cv2.INTER_AREA)
    width, height = FRAME_PX
    frames = []
    for number in range(_FRAMES):
        angle = 2 * math.pi * number / _FRAMES
        x, y = round(60 + 40 * math.sin(angle)), round(40 + 30 * math.cos(angle))
        view = image[y : y + height, x : x + width]
        frames.append(cv2.imencode(".jpg", view, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes())
    return frames


def stream(socket_: ClientConnection, frames: Sequence[bytes], *, seconds: float, rate: float) -> list[FrameResult]:
    """Send frames as the page does, at most `rate` per second; returns all results in order."""
    start = due = time.perf_counter()
    waiting: deque[float] = deque()  # send times of frames without a result
    usual_s, results, source = 0.1, [], cycle(frames)
    while (now := time.perf_counter()) - start < seconds:
        may_leave = max(due, waiting[-1] + usual_s / 2 if waiting else due)
        if len(waiting) < IN_FLIGHT and now >= may_leave:
            socket_.send(next(source))
            waiting.append(now)
            due = max(due + 1 / rate, now - 1 / rate)
            continue
        timeout_s = _TIMEOUT_S if len(waiting) == IN_FLIGHT else may_leave - now
        if not waiting:
            time.sleep(timeout_s)
            continue
        try:
            response = json.loads(socket_.recv(timeout=timeout_s))
        except TimeoutError:
            if timeout_s < _TIMEOUT_S:
                continue
            raise SystemExit(f"no result within {_TIMEOUT_S:g} s") from None
        received = time.perf_counter()
        if response["error"] is not None:
            raise SystemExit(f"the service rejected a frame: {response['error']['detail']}")
        latency_s = received - waiting.popleft()
        usual_s += 0.2 * (latency_s - usual_s)
        results.append(FrameResult(latency_s, len(response["faces"]), response["dropped"]))
    return results


def summary(results: Sequence[FrameResult], seconds: float) -> dict[str, Any]:
    """Frame rate and latencies of a run, also for its first and last tenth."""
    tenth = max(1, len(results) // 10)
    parts = {"": results, "_first_tenth": results[:tenth], "_last_tenth": results[-tenth:]}
    medians = {f"latency_p50{name}_ms": _ms(part, 0.5) for name, part in parts.items()}
    return {
        "frames_per_s": round(len(results) / seconds, 2),
        "latency_p50_ms": medians.pop("latency_p50_ms"),
        "latency_p99_ms": _ms(results, 0.99),
        **medians,
        "frames": len(results),
        "frames_with_a_face": sum(result.faces > 0 for result in results),
        "dropped": results[-1].dropped if results else 0,
        "seconds": seconds,
    }


def _ms(results: Sequence[FrameResult], share: float) -> float:
    return round(percentile((result.latency_s for result in results), share) * 1000, 2)


def measure(*, seconds: float, rate: float) -> dict[str, Any]:
    """Start a service, warm it up and stream for `seconds`."""
    frames = camera()
    with service() as running:
        port, ready = running.port, running.ready
        with connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None) as socket_:
            stream(socket_, frames, seconds=2.0, rate=math.inf)
        memory = running.memory_mb()
        with connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None) as socket_:
            results = stream(socket_, frames, seconds=seconds, rate=rate)
        return {
            **summary(results, seconds),
            "memory_first_mb": memory,
            "memory_last_mb": running.memory_mb(),
            "requested_frames_per_s": rate if math.isfinite(rate) else None,
            "frame_px": FRAME_PX,
            **{name: ready[name] for name in ("model", "provider", "precision", "detector")},
        }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=math.inf, help="maximum frames per second (default: unlimited)")
    given = parser.parse_args()
    publish(measure(seconds=given.seconds, rate=given.rate), given.json)


if __name__ == "__main__":
    main()
