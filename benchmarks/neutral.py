"""What the page's correction for a neutral face does and costs, as computed by the page itself in Chromium.

    python -m benchmarks.neutral [ferplus=FOLDER]

The sample clip: the first two seconds of a person count as their neutral face, and the table shows mean probabilities
before and after. With FERPlus: the faces of its validation split are read as those of people whose resting face looks
sad or angry, and the table shows how many of each label are still recognized. The split chooses nothing.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from playwright.sync_api import Page, sync_playwright

from benchmarks.background import service
from mien.app.inference.pipeline import Pipeline, build_pipeline
from mien.app.inference.tracking import Tracker
from mien.app.settings import load_settings
from mien.data.contract import LABELS, Array
from mien.data.readers.base import open_reader
from tests.browser import launch

CLIP: Final = Path(__file__).resolve().parents[1] / "app" / "static" / "page" / "samples" / "clip.webm"
CAPTURE_S: Final = 2.0
RESTING: Final = {
    "neutral": {"neutral": 0.85, "sadness": 0.07},
    "a bit sad": {"neutral": 0.45, "sadness": 0.45},
    "sad": {"neutral": 0.25, "sadness": 0.65},
    "angry": {"neutral": 0.25, "anger": 0.65},
}
# The probabilities of frames after the correction by a resting face.
CORRECTED: Final = """async ([resting, frames]) => {
  const { correctionOf, corrected } = await import('/page/core/neutral.js');
  const factors = correctionOf(resting);
  return frames.map((frame) => corrected(frame, factors));
}"""


def corrected(page: Page, resting: list[Array], frames: list[Array]) -> Array:
    """(N, 7) probabilities of frames after the correction by those of a resting face."""
    named = [[dict(zip(LABELS, map(float, row), strict=True)) for row in rows] for rows in (resting, frames)]
    return np.array([[probabilities[label] for label in LABELS] for probabilities in page.evaluate(CORRECTED, named)])


def clip_people(pipeline: Pipeline) -> dict[int, list[tuple[float, Array]]]:
    """Times and probabilities of each person of the sample clip."""
    capture, tracker = cv2.VideoCapture(str(CLIP)), Tracker(threshold=0.5)
    rate = capture.get(cv2.CAP_PROP_FPS)
    people: dict[int, list[tuple[float, Array]]] = defaultdict(list)
    number = 0
    while (read := capture.read())[0]:
        faces = pipeline.analyze_pixels(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)).faces
        for face, tracked in zip(faces, tracker.update(faces, number / rate), strict=True):
            people[tracked.track].append((number / rate, face.probabilities))
        number += 1
    capture.release()
    return people


def show_clip(page: Page, pipeline: Pipeline) -> None:
    """Print the mean probabilities of the people of the clip before and after the correction."""
    print(f"| person of the clip | | {' | '.join(LABELS)} |")
    for person, frames in clip_people(pipeline).items():
        resting = [row for at_s, row in frames if at_s < frames[0][0] + CAPTURE_S]
        rows = [row for _, row in frames]
        for name, values in (("before", np.array(rows)), ("after", corrected(page, resting, rows))):
            print(f"| {person} | {name} | {' | '.join(f'{100 * value:.0f} %' for value in values.mean(0))} |")


def show_cost(page: Page, pipeline: Pipeline, folder: str) -> None:
    """Print the recall per label for resting faces that differ."""
    reader = open_reader("ferplus", folder)
    samples = [sample for sample in reader.samples("valid") if sample.label in LABELS]
    crops = np.stack([reader.crop(sample) for sample in samples])
    rows = np.concatenate([pipeline.classify(crops[start : start + 16]) for start in range(0, len(crops), 16)])
    truth = np.array([LABELS.index(sample.label or "") for sample in samples])
    print(f"| resting face | {' | '.join(LABELS)} | all |")
    for name, shares in {"no correction": {}, **RESTING}.items():
        rest = (1 - sum(shares.values())) / (len(LABELS) - len(shares))
        resting = np.array([shares.get(label, rest) for label in LABELS])
        predicted = (corrected(page, [resting], list(rows)) if shares else rows).argmax(1)
        recalls = [(predicted[truth == place] == place).mean() for place in range(len(LABELS))]
        cells = [f"{100 * value:.1f} %" for value in (*recalls, (predicted == truth).mean())]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="ferplus=FOLDER")
    data = parser.parse_args().data
    pipeline = build_pipeline(load_settings())
    with service() as running, sync_playwright() as driver, launch(driver.chromium) as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{running.port}/card")
        show_clip(page, pipeline)
        if data:
            show_cost(page, pipeline, data.removeprefix("ferplus="))


if __name__ == "__main__":
    main()
