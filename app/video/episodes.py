"""Episodes: from when to when a person shows an expression, with hysteresis.

An episode begins with the first frame in which a probability is at least `ONSET`, and ends before the first one in
which it is below `OFFSET`, at a cut, or when the person is gone. Only frames with the face count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mien.app.inference.records import Face

ONSET: Final = 0.6  # above one half, so that a person shows one expression at a time
OFFSET: Final = 0.4
MIN_S: Final = 0.2  # Shorter episodes are left out.
GAP_S: Final = 2.0  # An episode goes on if its person is missing for less, as when a frame was not detected.


@dataclass(frozen=True, slots=True)
class Moment:
    """A labeled frame: the part of the video for which it stands, the number of cuts before it, and its faces."""

    time_s: float
    until_s: float
    scene: int
    faces: Sequence[Face]


@dataclass(slots=True)
class Episode:
    """One expression of one person; times are in seconds since the start of the video.

    Attributes:
        duration_s: time of the frames with the face; less than from onset to offset, if it was missing in between.
        peak, peak_s: the highest probability, and when it was reached first.
        agreement: mean expected share of people who would choose the expression; None if the model cannot tell.
    """

    person: int
    label: str
    onset_s: float
    offset_s: float
    duration_s: float = 0.0
    peak: float = 0.0
    peak_s: float = 0.0
    agreements: list[float] = field(default_factory=list, repr=False)

    @property
    def agreement(self) -> float | None:
        """Mean of the agreements of its frames."""
        return sum(self.agreements) / len(self.agreements) if self.agreements else None


def episodes_of(moments: Iterable[Moment]) -> list[Episode]:
    """Episodes of a video by person and onset; its faces have a person, and probabilities that are not smoothed."""
    begun, ended, scene = dict[tuple[int, str], Episode](), list[Episode](), 0
    for moment in moments:
        for key, episode in list(begun.items()):
            if moment.scene != scene or moment.time_s - episode.offset_s > GAP_S:
                ended.append(begun.pop(key))
        scene = moment.scene
        for face in moment.faces:
            for label, probability in face.probabilities.items():
                key = face.person or 0, label
                if key in begun and probability < OFFSET:
                    ended.append(begun.pop(key))
                elif key in begun or probability >= ONSET:
                    episode = begun.setdefault(key, Episode(*key, moment.time_s, moment.time_s))
                    episode.offset_s = moment.until_s
                    episode.duration_s += moment.until_s - moment.time_s
                    if probability > episode.peak:
                        episode.peak, episode.peak_s = probability, moment.time_s
                    if face.agreement is not None and face.label == label:
                        episode.agreements.append(face.agreement)
    ended += begun.values()
    long = (episode for episode in ended if episode.duration_s > MIN_S - 1e-6)  # a sum of times
    return sorted(long, key=lambda episode: (episode.person, episode.onset_s))


COLUMNS: Final = ("person", "label", "onset_s", "offset_s", "duration_s", "peak", "peak_s", "agreement")


def values_of(episode: Episode) -> dict[str, str | float | None]:
    """An episode as columns of a table, rounded."""
    agreement = episode.agreement
    times = (round(time_s, 3) for time_s in (episode.onset_s, episode.offset_s, episode.duration_s))
    values = (episode.peak, episode.peak_s, agreement)
    rounded = (None if value is None else round(value, 6) for value in values)
    return dict(zip(COLUMNS, (episode.person, episode.label, *times, *rounded), strict=True))
