"""Tracking of faces across the frames of a stream, and smoothing of their probabilities over time.

Flow: faces of a frame -> matched to tracks by expected position and by the face itself, in the best assignment of all
-> probabilities smoothed over time -> a label that changes only when another expression leads clearly, so that it does
not flicker between two.

`app/static/page/tracker.js` implements the same rules, and a test compares both.
docs/decisions/0013-own-tracker.md states why no library is used.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from mien.app.inference.records import Box, Face
from mien.data.contract import Array
from mien.data.quality import with_ambiguity

# What all faces have in common: the mean of the 10,903 training faces of muxspace at 8x8 pixels, in percent of the
# contrast; the left half, as the right half mirrors it.
_MEAN_FACE: Final = (
    (-8, -3, 6, 11),
    (-9, -1, 9, 14),
    (-8, -3, -5, 2),
    (-5, 2, 1, 5),
    (-4, 4, 10, 6),
    (-5, 0, 3, 1),
    (-7, -3, 1, -2),
    (-8, -7, -1, 4),
)
_GRID: Final = len(_MEAN_FACE)
# Change of hue, saturation and value at a cut of a video, the threshold of PySceneDetect
CUT_CHANGE: Final = 27.0
NEW_TRACK_COST: Final = 3.0  # A possible match costs less: at most 1 for the position and 2 for the face.


@dataclass(frozen=True, slots=True)
class TrackingRules:
    """Parameters of matching and smoothing. Distances are in face widths, similarities are cosines of descriptors."""

    # A face matches a track by position up to `reach` from where the track is expected, plus `reach_per_s` for each
    # second since it was last seen, up to `max_reach`, and if it is at most `max_growth` times as large or small.
    reach: float = 0.5
    reach_per_s: float = 2.0
    max_reach: float = 1.5
    max_growth: float = 2.0
    velocity_s: float = 0.15  # time constant of the smoothed velocity of a track
    lost_s: float = 2.0  # A track is not matched by position after this time without a matching face,
    slow_s: float = 4.0  # or after this time if there was no frame since it was last seen.
    other_face: float = 0.7  # A face near a track of the last frame is another person if it is less similar.
    same_face: float = 0.75  # A face that is at least so similar is the same person, wherever it appears
    return_s: float = 10.0  # within this time.
    merge_s: float = 1.0  # In this time after its start, a track is given up for that of a person who is gone
    gone_face: float = 0.8  # if its face comes to look like that person's, as when only a part was visible at first.
    # After a cut, a face is a person from before it only if it is at least so similar: of the faces of 60 photos, one
    # pair of different people in 2,000 is.
    cut_face: float = 0.9
    pause_s: float = 1.0  # A longer time without frames counts toward `return_s` as this one.
    head: float = 1.4  # width of a head in face widths
    covered: float = 0.15  # Two heads that share more of the smaller one hide each other: they can look different.
    # A face that begins while another one covers it becomes a person after this time, as detectors briefly see two
    # faces where two people cross.
    confirmed_s: float = 0.4
    smoothing_s: float = 0.25  # time constant of the exponential smoothing: after it, 63 % of a change is visible
    lead: float = 0.08  # how much more probable another expression must be to replace the displayed one


@dataclass(slots=True)
class _Seen:
    """A face of the newest frame: its box, its descriptor if known, and whether another face covers it."""

    box: Box
    descriptor: Array | None
    covered: bool


@dataclass(slots=True)
class _Track:
    box: Box
    probabilities: Array  # (7,) float64, smoothed
    agreement: float | None  # with the shown label
    shown: int
    sure: bool
    begun_s: float
    seen_s: float
    seen_clock_s: float
    since_s: float  # start of the time without a gap
    began_covered: bool
    person: int = 0  # 0 until the person is confirmed
    velocity_px: complex = 0j  # per second
    newest: Array | None = None  # descriptor of the newest face that was not covered
    mean: Array | None = None  # mean descriptor over time

    def similarity(self, seen: _Seen) -> float | None:
        if seen.descriptor is None:
            return None
        own = (known for known in (self.newest, self.mean) if known is not None)
        return max((float(known @ seen.descriptor) for known in own), default=None)


@dataclass(slots=True)
class Tracker:
    """Tracker for one stream; a label is uncertain if its probability is below `threshold`."""

    threshold: float
    rules: TrackingRules = field(default_factory=TrackingRules)
    _tracks: list[_Track] = field(default_factory=list)
    _next: int = 1
    _updated_s: float = -math.inf
    _cut_s: float = -math.inf  # time of the newest cut
    _clock_s: float = 0.0  # runs with the frames, but at most `pause_s` from one to the next

    def update(self, faces: tuple[Face, ...], at_s: float, *, cut: bool = False) -> list[Face]:
        """Match the faces of the next frame to tracks.

        Args:
            faces: faces of the frame, from the pipeline. Faces without a crop are matched by position only.
            at_s: time of the frame in seconds, on a monotonic clock.
            cut: whether another scene has begun since the frame before.
        Returns: the faces in the same order, with the number, the smoothed probabilities and the label of their track;
            without those that are not confirmed as people yet.
        """
        rules = self.rules
        self._cut_s = at_s if cut else self._cut_s
        self._clock_s += min(max(at_s - self._updated_s, 0.0), rules.pause_s)
        kept_s = max(rules.return_s, rules.lost_s, rules.slow_s)
        self._tracks = [track for track in self._tracks if self._clock_s - track.seen_clock_s <= kept_s]
        seen = [
            _Seen(
                face.box,
                descriptor(face.crop_rgb),
                any(_shared(face.box, other.box, rules.head) > rules.covered for other in faces if other is not face),
            )
            for face in faces
        ]
        costs = np.array([[self._cost(track, face, at_s) for track in self._tracks] for face in seen], np.float64)
        matches = assign(costs.reshape(len(seen), len(self._tracks)), NEW_TRACK_COST)
        tracks = [
            self._begin(face, seen_face, at_s) if match is None else self._tracks[match]
            for face, seen_face, match in zip(faces, seen, matches, strict=True)
        ]
        for index, seen_face in enumerate(seen):
            tracks[index] = self._reunite(tracks, index, seen_face, at_s)
        for track, face, seen_face in zip(tracks, faces, seen, strict=True):
            self._move(track, seen_face, at_s)
            self._smooth(track, face, at_s)
            if track.seen_s not in {self._updated_s, at_s}:
                track.since_s = at_s
            track.seen_s, track.seen_clock_s = at_s, self._clock_s
            if not track.person and (not track.began_covered or at_s - track.since_s >= rules.confirmed_s):
                track.person, self._next = self._next, self._next + 1
        self._updated_s = at_s
        return [_smoothed(face, track) for track, face in zip(tracks, faces, strict=True) if track.person]

    def _cost(self, track: _Track, seen: _Seen, at_s: float) -> float:
        """Cost of a match: distance from the expected position and difference of the faces; inf if impossible."""
        rules, passed_s = self.rules, at_s - track.seen_s
        similarity = track.similarity(seen)
        ahead_s = min(passed_s, rules.pause_s)
        size, track_size = _size(seen.box), _size(track.box)
        off = _center(seen.box) - _center(track.box) - ahead_s * track.velocity_px
        reach = min(rules.reach + rules.reach_per_s * passed_s, rules.max_reach)
        distance = abs(off) / (math.sqrt(size * track_size) * reach)
        in_last_frame = track.seen_s == self._updated_s
        held_s = rules.slow_s if in_last_frame else rules.lost_s
        is_near = distance <= 1 and passed_s <= held_s and 1 / rules.max_growth <= size / track_size <= rules.max_growth
        same_face = rules.same_face
        if track.seen_s < self._cut_s:
            is_near, same_face = False, rules.cut_face
        if similarity is None:
            return distance if is_near else math.inf
        is_same = similarity >= same_face and self._clock_s - track.seen_clock_s <= rules.return_s
        continues = in_last_frame and passed_s <= rules.pause_s and similarity >= rules.other_face
        if not (is_same or (is_near and (continues or seen.covered))):
            return math.inf
        return min(distance, 1.0) + min(2 * (1 - similarity), 1.9)

    def _reunite(self, tracks: list[_Track], index: int, seen: _Seen, at_s: float) -> _Track:
        """The track of a face, or that of a person who was gone when it began and whom the face looks like by now."""
        track, rules = tracks[index], self.rules
        if seen.covered or at_s - track.begun_s > rules.merge_s:
            return track
        gone = [
            (similarity, old)
            for old in self._tracks
            if old.seen_s < track.begun_s
            and self._clock_s - old.seen_clock_s <= rules.return_s
            and all(old is not other for other in tracks)
            and (similarity := old.similarity(seen) or 0.0)
            >= (rules.cut_face if old.seen_s < self._cut_s else rules.gone_face)
        ]
        if not gone:
            return track
        self._tracks = [other for other in self._tracks if other is not track]
        return max(gone, key=lambda pair: pair[0])[1]

    def _begin(self, face: Face, seen: _Seen, at_s: float) -> _Track:
        values = _values(face.probabilities)
        shown = int(values.argmax())
        sure = bool(values[shown] >= self.threshold)
        self._tracks.append(_Track(face.box, values, None, shown, sure, at_s, at_s, self._clock_s, at_s, seen.covered))
        return self._tracks[-1]

    def _move(self, track: _Track, seen: _Seen, at_s: float) -> None:
        """Take over the position of a face; its velocity and descriptor only if no other face covers it."""
        passed_s = at_s - track.seen_s
        if passed_s > 0 and not seen.covered:
            weight = 1 - math.exp(-passed_s / self.rules.velocity_s) if passed_s <= self.rules.lost_s else 0.0
            measured = (_center(seen.box) - _center(track.box)) / passed_s
            track.velocity_px = weight * measured + (1 - weight) * track.velocity_px
        track.box = seen.box
        if seen.descriptor is not None and not seen.covered:
            track.newest = seen.descriptor
            mean = seen.descriptor if track.mean is None else track.mean + 0.1 * (seen.descriptor - track.mean)
            track.mean = mean / np.linalg.norm(mean)

    def _smooth(self, track: _Track, face: Face, at_s: float) -> None:
        smoothing_s = self.rules.smoothing_s
        weight = 1.0 - math.exp(-max(0.0, at_s - track.seen_s) / smoothing_s)
        track.probabilities = track.probabilities + weight * (_values(face.probabilities) - track.probabilities)
        best = int(track.probabilities.argmax())
        if best != track.shown and track.probabilities[best] - track.probabilities[track.shown] >= self.rules.lead:
            track.shown, track.agreement = best, None
        # The agreement of a frame is that with its own label.
        if face.agreement is not None and face.label == list(face.probabilities)[track.shown]:
            before = face.agreement if track.agreement is None else track.agreement
            track.agreement = before + weight * (face.agreement - before)
        # As the label, `uncertain` has a hysteresis.
        margin = self.rules.lead / 2
        threshold = self.threshold - margin if track.sure else self.threshold + margin
        track.sure = bool(track.probabilities[track.shown] >= threshold)


def descriptor(crop: Array | None) -> Array | None:
    """A small vector to compare faces of one stream: the crop at 8x8 pixels without brightness, contrast and mean face.

    The cosine of two is high for one person. It does not identify people beyond a stream, and is never stored.

    Args:
        crop: (112, 112, 3) uint8 RGB, an aligned face; None if not available.
    Returns: (192,) float64 of length 1; None if there is no crop, or if it is of one color.
    """
    if crop is None:
        return None
    side = crop.shape[0] // _GRID
    cells = crop.reshape(_GRID, side, _GRID, side, 3).mean((1, 3), dtype=np.float64)
    cells -= cells.mean()
    contrast = np.linalg.norm(cells)
    if contrast < 1:
        return None
    vector = (cells / contrast - MEAN).ravel()
    return np.asarray(vector / np.linalg.norm(vector))


MEAN: Final = np.hstack([_MEAN_FACE, np.fliplr(_MEAN_FACE)])[..., None] / 100


def assign(costs: Array, unmatched: float) -> list[int | None]:
    """The cheapest assignment of rows to columns (Hungarian algorithm; Kuhn 1955, Jonker and Volgenant 1987).

    Args:
        costs: (rows, columns) float64; inf if impossible.
        unmatched: cost of a row without a column.
    Returns: the column of each row, or None.
    """
    rows, real = costs.shape
    padded = np.hstack([np.where(np.isfinite(costs), costs, 1e6), np.full((rows, rows), unmatched)])
    start = columns = real + rows
    row_of = np.full(columns + 1, -1)  # `start` holds the row that is being added.
    row_price, column_price = np.zeros(rows), np.zeros(columns + 1)
    for row in range(rows):
        row_of[start], column = row, start
        slack, previous = np.full(columns + 1, np.inf), np.full(columns + 1, -1)
        visited = np.zeros(columns + 1, bool)
        while row_of[column] >= 0:
            visited[column] = True
            reduced = padded[row_of[column]] - row_price[row_of[column]] - column_price[:start]
            better = np.flatnonzero(~visited[:start] & (reduced < slack[:start]))
            slack[better], previous[better] = reduced[better], column
            column = int(np.argmin(np.where(visited, np.inf, slack)))
            step = slack[column]
            row_price[row_of[visited]] += step
            column_price[visited] -= step
            slack[~visited] -= step
        while column != start:
            row_of[column] = row_of[previous[column]]
            column = int(previous[column])
        row_of[start] = -1
    matches: list[int | None] = [None] * rows
    for column, row in enumerate(row_of[:real]):
        if row >= 0:
            matches[row] = column
    return matches


def _center(box: Box) -> complex:
    return complex(box.x + box.width / 2, box.y + box.height / 2)


def _size(box: Box) -> float:
    return math.sqrt(box.width * box.height)


def _shared(a: Box, b: Box, grown: float) -> float:
    """Shared area of two boxes that are enlarged by `grown`, as a part of the smaller one."""
    overlap = 1.0
    for start, length, other_start, other_length in ((a.x, a.width, b.x, b.width), (a.y, a.height, b.y, b.height)):
        distance = abs(start + length / 2 - other_start - other_length / 2)
        side, other = grown * length, grown * other_length
        overlap *= min(max((side + other) / 2 - distance, 0.0), side, other)
    return overlap / (grown**2 * min(a.width * a.height, b.width * b.height))


def _values(shares: dict[str, float]) -> Array:
    return np.array(list(shares.values()))  # (7,) float64


def _smoothed(face: Face, track: _Track) -> Face:
    probabilities = dict(zip(face.probabilities, track.probabilities.tolist(), strict=True))
    label = list(probabilities)[track.shown]
    return replace(
        face,
        person=track.person,
        probabilities=probabilities,
        label=label,
        confidence=probabilities[label],
        uncertain=not track.sure,
        agreement=track.agreement,
        reasons=with_ambiguity(face.reasons, probabilities),
    )
