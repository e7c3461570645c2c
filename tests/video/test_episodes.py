"""Episodes of expressions: their times, by hysteresis, on faces with known probabilities."""

from dataclasses import replace

import pytest

from mien.app.video.episodes import Moment, episodes_of, values_of
from tests.support import labeled_face


@pytest.mark.parametrize(
    ("happiness", "expected"),  # every tenth of a second; None: the person is gone; 2: a cut before a face with 0.8
    [
        # An episode begins at the upper threshold, and ends below the lower one; another label's agreement is not its.
        ((0.59, 0.6, 0.5, 0.4, 0.39, 0.59), [(0.1, 0.4, 0.3, 0.6, 0.1, 0.5)]),
        # The last frame ends it, and a short one is left out.
        ((0.8, 0.2, 0.8, 0.9), [(0.2, 0.4, 0.2, 0.9, 0.3, 0.5)]),
        # A missed frame does not end it, and does not count; the peak is where it was reached first.
        ((0.7, 0.9, *[None] * 20, 0.9, 0.1), [(0.0, 2.3, 0.3, 0.9, 0.1, 0.5)]),
        ((0.8, 0.8, *[None] * 21, 0.8, 0.8), [(0.0, 0.2, 0.2, 0.8, 0.0, 0.5), (2.3, 2.5, 0.2, 0.8, 2.3, 0.5)]),
        ((0.8, 0.8, 0.8, 2, 0.8), [(0.0, 0.3, 0.3, 0.8, 0.0, 0.5), (0.3, 0.5, 0.2, 0.8, 0.3, 0.5)]),
    ],
)
def test_an_episode_lasts_from_its_onset_to_its_offset_and_counts_frames_with_the_face(
    happiness: tuple[float | None, ...], expected: list[tuple[float, ...]]
) -> None:
    moments, scene = [], 0
    for number, probability in enumerate(happiness):
        scene += probability == 2
        shares = {} if probability is None else {"happiness": 0.8 if probability == 2 else probability}
        faces = [labeled_face(**shares, anger=0.5 if probability == 0.4 else 0.01), labeled_face(anger=0.95)]
        faces = [replace(face, agreement={"happiness": 0.5, "anger": 0.9}.get(face.label)) for face in faces]
        people = [replace(face, person=person) for person, face in enumerate(faces, start=1)]
        moments.append(Moment(number / 10, (number + 1) / 10, scene, people[probability is None :]))
    rows = [tuple(values_of(episode).values()) for episode in episodes_of(moments)]
    assert rows[: len(expected)] == [(1, "happiness", *values) for values in expected]
    assert [(*row[:2], row[-1]) for row in rows[len(expected) :]] == [(2, "anger", 0.9)] * (1 + scene)
