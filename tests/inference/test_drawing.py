"""What people see of a face: boxes, tags, attention maps, and probabilities as text."""

from pathlib import Path

import cv2
import numpy as np

from mien.app.inference.drawing import annotate, overlay, percent, reduced
from mien.app.inference.records import Photo
from mien.data.contract import Array, decode
from tests.support import encoded, gradient_image, labeled_face

GOLDEN = Path(__file__).with_name("drawing.webp")


def _scene() -> Array:
    """Faces at the edges, uncertain, tiny and in a crowd, on reduced photos; and an attention map of bright tiles."""
    boxes = [(100, 90, 250, 260), (10, 0, 90, 100), (480, 300, 70, 80), (470, 390, 90, 80), (560, 310, 70, 70)]
    faces = [labeled_face(box, happiness=0.97, uncertain=box[0] == 10) for box in [*boxes, (600, 230, 18, 16)]]
    crowd = [labeled_face((20 + 52 * x, 20 + 60 * y, 40, 44), fear=0.4) for x in range(11) for y in range(7)]
    drawn = annotate(reduced(gradient_image(2000, 1500), 1000), Photo(640, 480, faces=tuple(faces)))
    drawn[:224, -224:] = overlay(gradient_image(112, 112), np.random.default_rng(0).random((7, 7)))
    return np.hstack([drawn, annotate(gradient_image(1000, 750), Photo(640, 480, faces=tuple(crowd)))])


def test_a_drawn_scene_equals_its_golden_image_and_leaves_the_original_as_it_is() -> None:
    """After an intended change, `python -m tests.inference.test_drawing` rewrites it."""
    image, photo = gradient_image(), Photo(320, 240, faces=(labeled_face(),))
    assert (annotate(image, photo) != image).any()
    assert (image == gradient_image()).all()
    difference = cv2.absdiff(_scene(), decode(GOLDEN.read_bytes())).max(axis=2)
    assert (difference > 8).mean() < 0.0002, "more than other versions of FreeType and OpenCV change"


def test_no_text_claims_certainty() -> None:
    assert [percent(share) for share in (0.0, 0.496, 0.9949, 0.995, 1.0)] == ["0%", "50%", "99%", ">99%", ">99%"]


if __name__ == "__main__":
    GOLDEN.write_bytes(encoded(_scene(), "WEBP", lossless=True, quality=100, method=6))
