"""`episodes.csv`: from when to when each person in a video shows which expression."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from mien.app.inference.episodes import Episode, Episodes, values_of
from mien.app.labeling.columns import Column, Row
from mien.app.labeling.images import THUMBS
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv
from mien.app.labeling.people import RULES, moments

HELP: Final = "episodes.csv: when each person in a video shows what"
IMAGES: Final = THUMBS  # people are recognized by them
TARGETS: Final = ("episodes.csv",)
_RULES: Final = replace(RULES, smoothing_s=0)  # which would delay the onsets; hysteresis is enough

COLUMNS: Final[tuple[Column, ...]] = (
    Column("file", "text", "", "name of the video"),
    Column("person", "integer", "", "number of the person in the video, from 1, as tracked"),
    Column("label", "text", "", "expression"),
    Column("onset_s", "number", "s", "time of the first frame with a probability of at least 0.6"),
    Column("offset_s", "number", "s", "time of the first frame below 0.4, or when the person is gone"),
    Column("duration_s", "number", "s", "from onset to offset; at least 0.2"),
    Column("peak", "number", "0..1", "highest probability"),
    Column("peak_s", "number", "s", "when it was reached first"),
    Column("agreement", "number", "0..1", "mean expected share of people who would choose `label`"),
)


def render(journal: Journal) -> None:
    """Write `episodes.csv`."""
    with open_output(journal, TARGETS[0]) as file:
        write_csv(journal, file, COLUMNS, (row for name in journal.videos() for row in _rows(journal, name)))


def _rows(journal: Journal, name: str) -> Iterator[Row]:
    tracked, episodes = Episodes(), list[Episode]()
    for image, gap_s in moments(journal, name, _RULES):
        episodes += tracked.update(image.faces, image.input.time_s or 0.0, gap_s=gap_s)
    episodes += tracked.close()
    for episode in sorted(episodes, key=lambda episode: (episode.person, episode.onset_s)):
        yield {"file": name} | values_of(episode)
