"""Faces of a stream keep their number, and labels do not flicker."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from mien.app.inference.records import Box, Face
from mien.app.inference.tracker import Tracker, _shared, descriptor
from mien.data.contract import CROP_PX, LABELS
from tests.support import face_of, labeled_face


def seen(who: int, x: float, *, like_3: float = 0.0) -> Face:
    one, other = (np.random.default_rng(number).integers(40, 200, (8, 8, 3), np.uint8) for number in (who, 3))
    look = ((1 - like_3) * one + like_3 * other).astype(np.uint8)
    return replace(labeled_face((x, 100, 80, 80)), crop_rgb=look.repeat(CROP_PX // 8, 0).repeat(CROP_PX // 8, 1))


def test_a_person_is_expected_ahead_for_a_second_and_known_again_for_ten() -> None:
    walk = {frame / 15: (labeled_face((100 + 10 * frame, 100, 80, 80)),) for frame in range(16)}
    both, gone = {0.0: (seen(1, 100), seen(2, 500))}, {at / 4: () for at in range(1, 60)}
    nine, eleven = ({at_s: faces for at_s, faces in gone.items() if at_s < end_s} for end_s in (9, 11))
    for frames, expected in (
        (walk | {2.0: (), 2.9: (labeled_face((400, 100, 80, 80)),)}, [1]),
        (both | nine | {9.0: (seen(2, 100), seen(3, 500))}, [2, 3]),
        (both | eleven | {11.0: (seen(2, 100),)}, [3]),
        (both | {60.0: (seen(2, 110), seen(1, 490))}, [2, 1]),
        (both | {1.0: (seen(1, 100, like_3=0.55),)}, [1]),  # as of a head that turns, of a cosine of 0.74
        (both | {1.1: (seen(1, 100, like_3=0.55),)}, [3]),
    ):
        tracker = Tracker(threshold=0.3)
        *_, people = (tracker.update(faces, at_s) for at_s, faces in frames.items())
        assert [face.person for face in people] == expected


def stream() -> Iterator[tuple[int, bool, dict[int, Face]]]:
    """Time in ms, cut, faces by person: six people walk, cross, leave and return; cuts, stalls, and missed faces."""
    random, at_ms = np.random.default_rng(13), 0
    looks = random.uniform(40, 200, (6, 8, 8, 3))
    places, speeds = random.uniform(0, 700, (6, 2)), random.normal(0, 90, (6, 2))
    for number in range(300):
        cut, step_ms = number % 61 == 60, int(random.choice([70, 70, 210, 520])) + 3000 * (number % 97 == 96)
        at_ms += step_ms
        speeds += random.normal(0, 60, (6, 2)) * (step_ms / 1000) ** 0.5
        places = random.uniform(0, 700, (6, 2)) if cut else np.clip(places + speeds * step_ms / 1000, 0, 700)
        faces = {}
        for who, (x, y) in enumerate(places):
            shares = random.dirichlet(np.where(np.arange(7) == (who + number // 80) % 7, 9, 1.5))
            look = (looks[who] + random.normal(0, random.uniform(0, 50), (8, 8, 3))).clip(0, 255)
            crop = None if random.random() < 0.1 else look.astype(np.uint8)
            size = (60 + 10 * who, 68 + 10 * who)
            one = face_of(dict(zip(LABELS, shares.tolist(), strict=True)), box=(x, y, *size), crop_rgb=crop)
            if (number // 23 + who) % 4 and random.random() > 0.08:
                faces[who] = replace(one, agreement=0.8 * float(shares.max()))
        yield at_ms, cut, faces


def test_a_long_stream_has_the_recorded_numbers_and_labels() -> None:
    tracker, given, shown = Tracker(threshold=0.45), defaultdict[int, str](str), list[Face]()
    for at_ms, cut, faces in stream():
        people = {face.box: face for face in tracker.update(tuple(faces.values()), at_ms / 1000, cut=cut)}
        shown += people.values()
        for who, face in faces.items():
            given[who] += chr(96 + people[face.box].person) if face.box in people else "-"
    assert ["".join(number for number, _ in groupby(given[who])) for who in range(6)] == (
        ["-egkg-ogogqga-vgxg", "aeafafeaoauada-avay{a", "dldrtdrd|d", "bhbcb-wz", "-fafijimisi", "cncpc"]
    )
    sums = [sum(getattr(face, name) for face in shown) for name in ("uncertain", "confidence", "agreement")]
    assert sums == pytest.approx([319, 609.7825639667394, 497.8778595654693])
    assert sum(len(face.reasons) for face in shown) == 156
    cells = np.random.default_rng(1).integers(0, 256, (8, 8, 3), np.uint8)
    values = descriptor(cells.repeat(CROP_PX // 8, 0).repeat(CROP_PX // 8, 1))
    assert values @ np.arange(192) ** 2 == pytest.approx(16747.754088778267)
    faint = np.full((CROP_PX, CROP_PX, 3), 100, np.uint8)
    assert descriptor(faint) is None
    faint[:14, :14] += 1
    assert descriptor(faint) is not None


def test_heads_that_overlap_share_a_part_of_the_smaller_one() -> None:
    box = Box(0, 0, 10, 10)
    assert _shared(box, Box(5, 0, 20, 10), 1.4) == pytest.approx(11 * 14 / 14**2)
    assert _shared(box, Box(0, 20, 10, 10), 1.4) == 0
    assert _shared(Box(0, 0, 100, 100), Box(40, 40, 10, 10), 1.4) == pytest.approx(1)
