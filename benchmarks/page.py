"""The page in a browser: kilobytes of a first and a second visit; frame rate, memory and delay of local mode.

    make runtime
    python -m benchmarks.page
    python -m benchmarks.page --seconds 300
    python -m benchmarks.page --engines      # frame rate and round trip in Chromium, Firefox and WebKit, of the sample

The service and Chromium run on this machine. Counted are all bytes that the service sends, headers included; a second
visit has the service worker of the first. The camera shows one moving face at 640x480 and 30 frames/s; memory is the
resident memory of the page's process after 10 s, and at each fifth of the time. With three faces, whose expressions all
change every 3 s, a delay lasts from the first picture of the change until all three cards show the new label, and until
they show it as certain: median and longest. It needs the packages of the tests, and Chromium.
"""

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import mean, median
from typing import Any

import cv2
import numpy as np
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from benchmarks.background import resident_bytes, service
from benchmarks.results import benchmark_parser, publish
from mien.data.contract import Array
from tests.support import ROOT
from tests.support.browser import ALLOWED, CAMERA, FRAME_PX, WAIT_MS, camera_frames, launch
from tests.support.engines import Script, firefox, webkit

NO_FIGURE = "–"  # noqa: RUF001 - the dash of the page
READY = "document.getElementById('place').textContent.startsWith('Ready')"
ASTRONAUT, HOPPER = ROOT / "samples/photos/astronaut.jpg", ROOT / "samples/photos/grace_hopper.jpg"
SMILING_PX = np.array(((204, 102), (247, 105), (223, 127), (204, 142), (241, 145)), np.float32)  # eyes, nose, mouth
NEUTRAL_PX = np.array(((220, 196), (307, 193), (264, 244), (230, 280), (303, 277)), np.float32)
HEAD = (slice(30, 240), slice(150, 360))  # of the astronaut
CHANGE_FRAMES = 90
DELAYS = Path(__file__).with_name("page_delays.js")


class Meter:
    """Forwards connections to a port of this machine, and counts the bytes that come back."""

    def __init__(self, port: int) -> None:
        self.received = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            browser, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, target, counted in ((browser, server, False), (server, browser, True)):
                threading.Thread(target=self._forward, args=(source, target, counted), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                self.received += len(part) * counted
                target.sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def write_camera(path: Path, frames: Iterator[Array]) -> Path:
    """Write frames as Motion JPEG. Returns `path`."""
    with path.open("wb") as file:
        for frame in frames:
            _, payload = cv2.imencode(".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 92])
            file.write(payload.tobytes())
    return path


def changing_frames(side_px: int = 190) -> Iterator[Array]:
    """Frames of three faces that smile, then not: (480, 640, 3) uint8 RGB, with a white and then black corner."""
    smiling, neutral = (np.asarray(Image.open(path).convert("RGB")) for path in (ASTRONAUT, HOPPER))
    room = cv2.GaussianBlur(cv2.resize(smiling[300:, 300:], FRAME_PX), (0, 0), 15)
    matrix, _ = cv2.estimateAffine2D(NEUTRAL_PX, SMILING_PX)
    face = np.zeros(smiling.shape[:2], np.uint8)
    middle = tuple(map(int, SMILING_PX.mean(0)))
    cv2.ellipse(face, middle, (40, 52), 0, 0, 360, 255, -1)
    moved = cv2.warpAffine(neutral, matrix, face.shape[::-1], flags=cv2.INTER_CUBIC)
    calm = cv2.seamlessClone(moved, smiling, face, middle, cv2.NORMAL_CLONE)
    for photo, corner in ((smiling, 255), (calm, 0)):
        head = cv2.resize(photo[HEAD], (side_px, side_px), interpolation=cv2.INTER_AREA)
        for angle in np.linspace(0, 2 * np.pi, CHANGE_FRAMES, endpoint=False):
            frame = room.copy()
            for column in range(3):
                left, top = round(20 + 205 * column + 8 * np.sin(angle)), round(140 + 12 * np.cos(angle))
                frame[top : top + side_px, left : left + side_px] = head if column != 1 else head[:, ::-1]
            frame[:24, :24] = corner
            yield frame


def visit(context: BrowserContext, meter: Meter, *, local: bool) -> tuple[Page, float]:
    """Open the page, and in local mode the models. Returns it and the kilobytes that it took."""
    before = meter.received
    page = context.new_page()
    page.goto(meter.url, timeout=WAIT_MS)
    page.wait_for_load_state("networkidle")
    if local:
        page.evaluate("() => { const box = document.getElementById('local'); box.checked = false; box.click(); }")
        while not page.evaluate(READY):
            page.wait_for_timeout(200)
    page.wait_for_timeout(2000)
    return page, round((meter.received - before) / 1000, 1)


def start_camera(page: Page, face: str) -> None:
    """Start the camera, and wait until a face, a selector of CSS, has a label, and ten seconds more."""
    page.click("#start")
    page.wait_for_selector(f"{face} .face-label:not(:empty)", timeout=WAIT_MS)
    page.wait_for_timeout(10_000)


def frame_rates(page: Page, seconds: float) -> list[float]:
    """The frame rate that the page shows, every two seconds."""
    rates = []
    for _ in range(round(seconds / 2)):
        page.wait_for_timeout(2000)
        rates.append(float(page.inner_text("#fps")))
    return rates


def frames_and_memory(page: Page, seconds: float) -> dict[str, Any]:
    """Frame rate of local mode with the camera, and the memory of the page."""
    start_camera(page, ".face")
    memory, rates = [renderer_mb(page)], []
    for _ in range(5):
        rates += frame_rates(page, seconds / 5)
        memory.append(renderer_mb(page))
    return {"frames_per_s": round(mean(rates), 1), "latency": page.inner_text("#latency"), "memory_mb": memory}


def three_faces(page: Page, seconds: float) -> dict[str, Any]:
    """Frame rate of local mode with three faces, and its delay after a change of their expressions, milliseconds."""
    start_camera(page, ".face:nth-child(3)")
    rates = frame_rates(page, seconds)
    delays = page.evaluate(DELAYS.read_text(encoding="utf-8"), max(4, round(seconds / 3)))
    found: dict[str, Any] = {"frames_per_s": round(mean(rates), 1), "latency": page.inner_text("#latency")}
    for kind in ("shown", "certain"):
        times = [change[kind] for change in delays if kind in change]
        found |= {f"{kind}_ms": [round(median(times)), round(max(times))], f"{kind}_of": [len(times), len(delays)]}
    return found


def sample_clip(run: Script, seconds: float) -> dict[str, Any]:
    """Frame rate and round trip of the sample clip in one engine, labeled by the service and in local mode."""

    def until(expression: str) -> None:
        while not run(expression):
            time.sleep(0.2)

    until("document.querySelectorAll('[inert]').length === 0")
    results = {}
    for mode in ("service", "local"):
        if mode == "local":
            run("document.getElementById('local').click()")
            until(READY)
        run("document.getElementById('sample-clip').click()")
        until("Boolean(document.querySelector('#faces .face-label')?.textContent)")
        time.sleep(5)
        figures = []
        for _ in range(round(seconds / 2)):
            time.sleep(2)
            figures.append([run(f"document.getElementById('{name}').textContent") for name in ("fps", "latency")])
        rates = [float(rate) for rate, _ in figures if rate != NO_FIGURE]
        results[mode] = {"frames_per_s": round(mean(rates), 1), "latency": figures[-1][1]}
        run("document.getElementById('stop').click()")
    return results


def engines(url: str, seconds: float) -> dict[str, Any]:
    """The sample clip in Chromium, Firefox and WebKit, one after the other."""
    results = {}
    with sync_playwright() as driver, launch(driver.chromium) as browser:
        page = browser.new_page()
        page.goto(url)
        results["chromium"] = sample_clip(page.evaluate, seconds)
    for opened in (firefox, webkit):
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder), url) as run:
            results[opened.__name__] = sample_clip(run, seconds)
    return results


def renderer_mb(page: Page) -> int:
    """Resident memory of the largest page process of the browser, megabytes."""
    browser = page.context.browser
    assert browser is not None, "opened by new_context"  # noqa: S101
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return round(max(resident_bytes(process["id"]) for process in processes if process["type"] == "renderer") / 1e6)


def measure(browser: Browser, meter: Meter, seconds: float) -> dict[str, Any]:
    """All figures, with and without local mode."""
    results: dict[str, Any] = {}
    for local in (False, True):
        context = browser.new_context()
        for name in ("first", "second"):
            page, kilobytes = visit(context, meter, local=local)
            results[f"{name}_visit{'_local' if local else ''}_kb"] = kilobytes
            if local and name == "second":
                results |= frames_and_memory(page, seconds)
            page.close()
        context.close()
    return results


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="duration of the camera in local mode")
    parser.add_argument("--engines", action="store_true", help="the sample clip in three browsers instead")
    options = parser.parse_args()
    seconds = options.seconds
    if options.engines:
        with service() as running:
            publish(engines(f"http://127.0.0.1:{running.port}/", seconds), options.json)
        return
    with tempfile.TemporaryDirectory() as folder, service() as running, sync_playwright() as driver:
        meter = Meter(running.port)
        film = "--use-file-for-fake-video-capture="
        camera = write_camera(Path(folder) / "face.mjpeg", camera_frames())
        with launch(driver.chromium, CAMERA, ALLOWED, f"{film}{camera}") as browser:
            results = measure(browser, meter, seconds)
        camera = write_camera(Path(folder) / "three.mjpeg", changing_frames())
        with launch(driver.chromium, CAMERA, ALLOWED, f"{film}{camera}") as browser:
            page, _ = visit(browser.new_context(), meter, local=True)
            publish(results | {"three_faces": three_faces(page, seconds)}, options.json)


if __name__ == "__main__":
    main()
