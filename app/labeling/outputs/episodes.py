"""`episodes.csv`: from when to when each person in a video shows which expression."""

from collections.abc import Iterator
from typing import Final

from mien.app.labeling.columns import Column, Row
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv
from mien.app.video.episodes import Moment, episodes_of, values_of

HELP: Final = "episodes.csv: when each person in a video shows what"
TARGETS: Final = ("episodes.csv",)

COLUMNS: Final[tuple[Column, ...]] = (
    Column("file", "text", "", "name of the video"),
    Column("person", "integer", "", "number of the person in the video, from 1, as tracked"),
    Column("label", "text", "", "expression"),
    Column("onset_s", "number", "s", "time of the first frame with a probability of at least 0.6"),
    Column("offset_s", "number", "s", "end of the last frame of at least 0.4; a cut ends it, too"),
    Column("duration_s", "number", "s", "time of the frames with the face, from onset to offset; at least 0.2"),
    Column("peak", "number", "0..1", "highest probability"),
    Column("peak_s", "number", "s", "when it was reached first"),
    Column("agreement", "number", "0..1", "mean expected share of people who would choose `label`"),
)


def render(journal: Journal) -> None:
    """Write `episodes.csv`."""
    with open_output(journal, TARGETS[0]) as file:
        write_csv(journal, file, COLUMNS, (row for name in journal.videos() for row in _rows(journal, name)))


def _rows(journal: Journal, name: str) -> Iterator[Row]:
    frames = (image for image in journal.results(name) if image.frame is not None)
    moments = (Moment(image.time_s or 0.0, image.until_s or 0.0, image.scene, image.faces) for image in frames)
    yield from ({"file": name} | values_of(episode) for episode in episodes_of(moments))
