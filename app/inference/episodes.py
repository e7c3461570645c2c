"""Episodes: from when to when a person shows an expression, with hysteresis.

An episode begins with the first frame in which a probability is at least `onset`, and ends with the first one in which
it is below `offset`, or when the person is gone. Every frame stands for the time until the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mien.app.inference.records import Face


@dataclass(frozen=True, slots=True)
class EpisodeRules:
    """Parameters of episodes.

    Attributes:
        onset: probability that begins an episode; above one half, so that a person shows one expression at a time.
        offset: probability below which it ends.
        min_s: shorter episodes are left out.
        gap_s: a person who is missing for less is still there, as when a frame was not detected.
    """

    onset: float = 0.6
    offset: float = 0.4
    min_s: float = 0.2
    gap_s: float = 2.0


RULES: Final = EpisodeRules()


@dataclass(slots=True)
class Episode:
    """One expression of one person; times are in seconds since the start of the video.

    Attributes:
        peak, peak_s: the highest probability, and when it was reached first.
        agreement: mean expected share of people who would choose the expression; None if the model cannot tell.
    """

    person: int
    label: str
    onset_s: float
    offset_s: float
    peak: float = 0.0
    peak_s: float = 0.0
    agreements: list[float] = field(default_factory=list, repr=False)

    @property
    def duration_s(self) -> float:
        """Seconds from onset to offset."""
        return self.offset_s - self.onset_s

    @property
    def agreement(self) -> float | None:
        """Mean of the agreements of its frames."""
        return sum(self.agreements) / len(self.agreements) if self.agreements else None


@dataclass(slots=True)
class Episodes:
    """Finds the episodes of a video, frame by frame; faces have tracks and probabilities that are not smoothed."""

    rules: EpisodeRules = RULES
    _open: dict[tuple[int, str], Episode] = field(default_factory=dict)
    _last_s: dict[int, float] = field(default_factory=dict)  # by person: time of the last frame with them
    _until_s: dict[int, float] = field(default_factory=dict)  # by person: end of this frame
    _step_s: float = 0.0
    _time_s: float | None = None

    def update(self, faces: Iterable[Face], time_s: float, *, gap_s: float | None = None) -> list[Episode]:
        """Add the next frame.

        Args:
            time_s: its time, after that of the last one.
            gap_s: how long a person may be missing, instead of that of the rules, as with sparse frames.
        Returns: episodes that have ended.
        """
        gap_s = self.rules.gap_s if gap_s is None else gap_s
        if self._time_s is not None:
            self._step_s = min(time_s - self._time_s, gap_s)
            self._end_frame()
        ended = [
            self._end(key, self._until_s[key[0]]) for key in list(self._open) if time_s - self._last_s[key[0]] > gap_s
        ]
        for face in faces:
            ended += self._add(face, time_s)
        self._time_s = time_s
        return [episode for episode in ended if self._is_long(episode)]

    def _add(self, face: Face, time_s: float) -> list[Episode]:
        person, ended = face.person or 0, []
        self._last_s[person] = time_s
        for label, probability in face.probabilities.items():
            key = person, label
            episode = self._open.get(key)
            if episode is not None and probability < self.rules.offset:
                ended.append(self._end(key, time_s))
                continue
            if episode is None and probability >= self.rules.onset:
                episode = self._open[key] = Episode(person, label, time_s, time_s)
            if episode is not None:
                if probability > episode.peak:
                    episode.peak, episode.peak_s = probability, time_s
                if face.agreement is not None and face.label == label:
                    episode.agreements.append(face.agreement)
        return ended

    def _end_frame(self) -> None:
        """Let the last frame stand for its time for the people in it."""
        for person, last_s in self._last_s.items():
            if last_s == self._time_s:
                self._until_s[person] = last_s + self._step_s

    def close(self) -> list[Episode]:
        """End the video: the last frame lasts as long as the one before. Returns: the episodes that are left."""
        self._end_frame()
        ended = [self._end(key, self._until_s[key[0]]) for key in list(self._open)]
        return [episode for episode in ended if self._is_long(episode)]

    def _end(self, key: tuple[int, str], offset_s: float) -> Episode:
        episode = self._open.pop(key)
        episode.offset_s = offset_s
        return episode

    def _is_long(self, episode: Episode) -> bool:
        return episode.duration_s > self.rules.min_s - 1e-6  # times are sums of steps


COLUMNS: Final = ("person", "label", "onset_s", "offset_s", "duration_s", "peak", "peak_s", "agreement")


def values_of(episode: Episode) -> dict[str, str | float | None]:
    """An episode as columns of a table, rounded."""
    agreement = episode.agreement
    times = (round(time_s, 3) for time_s in (episode.onset_s, episode.offset_s, episode.duration_s))
    values = (episode.peak, episode.peak_s, agreement)
    rounded = (None if value is None else round(value, 6) for value in values)
    return dict(zip(COLUMNS, (episode.person, episode.label, *times, *rounded), strict=True))
