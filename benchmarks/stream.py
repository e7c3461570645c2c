"""How many webcam frames a second does the service answer, how late, and does it stay so?

    python -m benchmarks.stream --json out/stream.json
    python -m benchmarks.stream --seconds 600 --rate 15 --json out/stream.json

This process is the client of `WS /v1/stream` on loopback; the service runs in a process of its own on the same cores.
Frames of 640 x 480 with one face that moves are sent as the page sends them: at most two in flight, and the second only
when the first has been away for half of a usual round trip; with `--rate` not more often than that, as from a camera. A
latency counts from sending a frame to having its
answer; a browser adds a few milliseconds to encode and to draw. Queue growth would show as a last tenth later than the
first, a leak as memory. Model, detector and device are those that the environment says (`MIEN_*`). Run it on a quiet
machine.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import cv2
from websockets.sync.client import ClientConnection, connect

from benchmarks.background import service
from benchmarks.figures import publish
from benchmarks.load import percentile

FRAME_PX: Final = (640, 480)
IN_FLIGHT: Final = 2
_PHOTO: Final = Path(__file__).resolve().parent.parent / "samples" / "photos" / "astronaut.jpg"
_PHOTO_PX: Final = 760
_FRAMES: Final = 60
_QUALITY: Final = 80
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """When a frame's answer came, seconds from the start; how late; how many faces; frames replaced so far."""

    at_s: float
    latency_s: float
    faces: int
    dropped: int


def camera(photo: Path = _PHOTO) -> list[bytes]:
    """A loop of JPEG frames, 640 x 480, in which the photo moves a little."""
    read = cv2.imread(str(photo))
    if read is None:
        raise SystemExit(f"{photo}: no such picture")
    picture = cv2.resize(read, (_PHOTO_PX, _PHOTO_PX), interpolation=cv2.INTER_AREA)
    width, height = FRAME_PX
    frames = []
    for number in range(_FRAMES):
        angle = 2 * math.pi * number / _FRAMES
        x, y = round(60 + 40 * math.sin(angle)), round(40 + 30 * math.cos(angle))
        view = picture[y : y + height, x : x + width]
        frames.append(cv2.imencode(".jpg", view, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes())
    return frames


def stream(
    socket_: ClientConnection, frames: Sequence[bytes], *, seconds: float, in_flight: int, rate: float = math.inf
) -> list[Answer]:
    """Send frames for so long, as the page does, at most `rate` a second; returns every answer in order."""
    start = due = time.perf_counter()
    waiting: deque[float] = deque()  # when each frame that has no answer yet left
    usual_s, answers, source = 0.1, [], cycle(frames)
    while (now := time.perf_counter()) - start < seconds:
        may_leave = max(due, waiting[-1] + usual_s / 2 if waiting else due)
        if len(waiting) < in_flight and now >= may_leave:
            socket_.send(next(source))
            waiting.append(now)
            due = max(due + 1 / rate, now - 1 / rate)
            continue
        patience_s = _PATIENCE_S if len(waiting) == in_flight else may_leave - now
        if not waiting:
            time.sleep(patience_s)
            continue
        try:
            result = json.loads(socket_.recv(timeout=patience_s))
        except TimeoutError:
            if patience_s < _PATIENCE_S:
                continue
            raise SystemExit(f"the service has not answered a frame for {_PATIENCE_S:g} s") from None
        came = time.perf_counter()
        if result["error"] is not None:
            raise SystemExit(f"the service refuses the frames: {result['error']['detail']}")
        latency_s = came - waiting.popleft()
        usual_s += 0.2 * (latency_s - usual_s)
        answers.append(Answer(came - start, latency_s, len(result["faces"]), result["dropped"]))
    return answers


def figures(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Rate and latencies of a run, and whether the last tenth was later than the first."""
    tenth = max(1, len(answers) // 10)
    parts = {"": answers, "_first_tenth": answers[:tenth], "_last_tenth": answers[-tenth:]}
    medians = {f"latency_p50{name}_ms": _ms(part, 0.5) for name, part in parts.items()}
    return {
        "frames_per_s": round(len(answers) / seconds, 2),
        "latency_p50_ms": medians.pop("latency_p50_ms"),
        "latency_p99_ms": _ms(answers, 0.99),
        **medians,
        "frames": len(answers),
        "frames_with_a_face": sum(answer.faces > 0 for answer in answers),
        "dropped": answers[-1].dropped if answers else 0,
        "seconds": seconds,
    }


def _ms(answers: Sequence[Answer], share: float) -> float:
    return round(percentile((answer.latency_s for answer in answers), share) * 1000, 2)


def _memory_mb(process: "subprocess.Popen[bytes]") -> float | None:
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1000, 1)


def measure(
    *, seconds: float, in_flight: int = IN_FLIGHT, rate: float = math.inf, warm_s: float = 2.0
) -> dict[str, Any]:
    """Start a service, warm it, stream for `seconds`, and say what came of it."""
    frames = camera()
    with service() as running:
        process, port, ready = running.process, running.port, running.ready
        with connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None) as socket_:
            stream(socket_, frames, seconds=warm_s, in_flight=1)
        memory = _memory_mb(process)
        with connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None) as socket_:
            answers = stream(socket_, frames, seconds=seconds, in_flight=in_flight, rate=rate)
        return {
            **figures(answers, seconds),
            "memory_first_mb": memory,
            "memory_last_mb": _memory_mb(process),
            "in_flight": in_flight,
            "asked_frames_per_s": rate if math.isfinite(rate) else None,
            "frame_px": FRAME_PX,
            **{name: ready[name] for name in ("model", "provider", "precision", "detector")},
            "cores": os.cpu_count(),
            "load_average_after": [round(value, 2) for value in os.getloadavg()],
            "python": platform.python_version(),
        }


def main() -> None:
    """Measure, print, and write the same as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--in-flight", type=int, choices=(1, 2), default=IN_FLIGHT, help="frames without an answer")
    parser.add_argument("--rate", type=float, default=math.inf, help="frames a second at most; as fast as it goes")
    given = parser.parse_args()
    publish(measure(seconds=given.seconds, in_flight=given.in_flight, rate=given.rate), given.json)


if __name__ == "__main__":
    main()
