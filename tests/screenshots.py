"""Screenshots of docs/webcam.md: the page with the sample photos in Chromium.

    python -m tests.screenshots docs/images

The model is the released one, or that of MIEN_MODEL.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.browser import ALLOWED, CAMERA, WAIT_MS, launch, people_frames, serving, write_camera
from tests.support import ROOT

DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=360, height=740)


def live(page: Page) -> None:
    """Run the camera until the timelines show results."""
    page.click("#start")
    page.wait_for_selector("[data-person='2'] .face-label:not(:empty)", timeout=WAIT_MS)
    page.wait_for_timeout(20_000)


def photos(page: Page) -> None:
    """All sample photos, as tiles."""
    page.click("#tab-photos")
    page.set_input_files("#files", sorted((ROOT / "samples/photos").glob("*.jpg")))
    page.wait_for_selector(".tile:nth-child(3) canvas", timeout=WAIT_MS)
    page.wait_for_timeout(500)


SHOTS: dict[str, tuple[Callable[[Page], None], ViewportSize, str]] = {
    "webcam-live-dark": (live, DESKTOP, "dark"),
    "webcam-photos-light": (photos, DESKTOP, "light"),
    "webcam-live-phone": (live, PHONE, "dark"),
}


def main(folder: Path) -> None:
    """Write all screenshots as JPEG to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver, serving(Path(place)) as site:
        camera = write_camera(Path(place) / "camera.mjpeg", people_frames())
        with launch(driver.chromium, CAMERA, ALLOWED, f"--use-file-for-fake-video-capture={camera}") as browser:
            for name, (act, viewport, colors) in SHOTS.items():
                context = browser.new_context(viewport=viewport, color_scheme=colors)
                page = context.new_page()
                page.goto(site.url, timeout=WAIT_MS)
                act(page)
                page.screenshot(path=folder / f"{name}.jpg", type="jpeg", quality=88)
                context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
