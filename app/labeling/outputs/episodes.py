"""`episodes.csv`: from when to when each person in a video shows which expression; also as subtitles and for ELAN.

`expression_time.csv` has the share of time of each person per expression. `episodes/` has subtitles of every video,
SubRip and WebVTT, and an annotation of ELAN (EAF 3.0).
"""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from mien.app.inference.episodes import Episode, Episodes, values_of
from mien.app.labeling.columns import Column, Row
from mien.app.labeling.images import THUMBS, of_video
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv
from mien.app.labeling.pages import relative_link
from mien.app.labeling.people import RULES, People, moments

HELP: Final = "episodes.csv, subtitles, ELAN: when each person shows what"
IMAGES: Final = THUMBS  # people are recognized by them
TARGETS: Final = ("episodes.csv", "expression_time.csv", "episodes")
REVIEWED: Final = True
_RULES: Final = replace(RULES, smoothing_s=0)  # which would delay the onsets; hysteresis is enough
_WRITTEN: Final = "episode_files"  # in the journal
_MIME_TYPES: Final = {".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/quicktime", ".mpg": "video/mpeg"}

Name = Callable[[int], str]  # of a person by number
_SCHEMA: Final = "http://www.mpi.nl/tools/elan/EAFv3.0.xsd"
_EXPRESSIONS: Final = "expression"

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
    Column("name", "text", "", "name that was given to the person in the review"),
)
TIME_COLUMNS: Final[tuple[Column, ...]] = (
    Column("file", "text", "", "name of the video"),
    Column("person", "integer", "", "number of the person in the video"),
    Column("label", "text", "", "expression; empty for the time without one"),
    Column("shown_s", "number", "s", "time of the episodes with it"),
    Column("seen_s", "number", "s", "time in which the person was there"),
    Column("share", "number", "0..1", "`shown_s` over `seen_s`"),
    Column("name", "text", "", "name that was given to the person in the review"),
)


@dataclass(frozen=True, slots=True)
class _Video:
    name: str
    path: bytes
    tracked: Episodes
    episodes: list[Episode]
    names: dict[int, str]

    def name_of(self, person: int) -> str:
        return self.names.get(person) or f"person {person}"


def render(journal: Journal) -> None:
    """Write the tables, and the subtitles and annotations of every video."""
    videos = [_episodes(journal, name) for name in journal.videos()]
    for target, columns, rows in zip(TARGETS, (COLUMNS, TIME_COLUMNS), (_rows, _time_rows), strict=False):
        with open_output(journal, target) as file:
            write_csv(journal, file, columns, (row for video in videos for row in rows(video)))
    written = [path for video in videos for path in _write_subtitles(journal, video)]
    for path in set(json.loads(journal.get(_WRITTEN) or "[]")).difference(written):
        with suppress(OSError):
            os.unlink(journal.out / path)
    journal.put(_WRITTEN, json.dumps(written))


def _episodes(journal: Journal, name: str) -> _Video:
    tracked, episodes = Episodes(), list[Episode]()
    for image, gap_s in moments(journal, name, _RULES):
        episodes += tracked.update(image.faces, image.input.time_s or 0.0, gap_s=gap_s)
    episodes += tracked.close()
    names, _ = People(journal.out).names(journal, name)
    episodes.sort(key=lambda episode: (episode.person, episode.onset_s))
    return _Video(name, image.input.path, tracked, episodes, names)


def _rows(video: _Video) -> Iterator[Row]:
    for episode in video.episodes:
        yield {"file": video.name} | values_of(episode) | {"name": video.names.get(episode.person)}


def _time_rows(video: _Video) -> Iterator[Row]:
    for person, seen_s in sorted(video.tracked.seen_s.items()):
        shown = {label: time_s for (who, label), time_s in video.tracked.shown_s.items() if who == person}
        rest = {"": max(0.0, seen_s - sum(shown.values()))}
        for label, shown_s in (dict(sorted(shown.items(), key=lambda pair: -pair[1])) | rest).items():
            row: Row = {"file": video.name, "person": person, "label": label or None, "shown_s": round(shown_s, 3)}
            row |= {"seen_s": round(seen_s, 3), "share": round(shown_s / seen_s, 6) if seen_s else None}
            yield row | {"name": video.names.get(person)}


def _write_subtitles(journal: Journal, video: _Video) -> list[str]:
    """Write the files of one video; returns their paths."""
    base = of_video("episodes", video.name)
    depth = len(PurePosixPath(base).parts) - 1
    link = relative_link(video.path, journal.out)
    media = f"{'../' * depth}{unquote(link)}" if link else PurePosixPath(video.name).name
    mime_type = _MIME_TYPES.get(PurePosixPath(video.name).suffix.lower(), "video/*")
    texts = {
        "srt": srt(video.episodes, video.name_of),
        "vtt": vtt(video.episodes, video.name_of),
        "eaf": eaf(video.episodes, video.name_of, media=media, mime_type=mime_type),
    }
    for suffix, text in texts.items():
        with open_output(journal, f"{base}.{suffix}") as file:
            file.write(text)
    return [f"{base}.{suffix}" for suffix in texts]


# Subtitles and ELAN


def srt(episodes: Iterable[Episode], name: Name) -> str:
    """SubRip: one subtitle per episode."""
    return "".join(
        f"{number}\n{_span(episode, ',')}\n{_line(episode, name)}\n\n"
        for number, episode in enumerate(_in_order(episodes), start=1)
    )


def vtt(episodes: Iterable[Episode], name: Name) -> str:
    """WebVTT: one cue per episode, with the person as its voice, and in its text: players do not show the voice."""
    cues = (
        f"{_span(episode, '.')}\n<v {_escaped(_printable(name(episode.person)))}>{_escaped(_line(episode, name))}\n\n"
        for episode in _in_order(episodes)
    )
    return "WEBVTT\n\n" + "".join(cues)


def eaf(episodes: Sequence[Episode], name: Name, *, media: str, mime_type: str = "video/mp4") -> str:
    """ELAN: one tier per name, because tiers must differ in their names.

    Args:
        media: relative path from the file to the video; not percent-encoded, which ELAN would not decode.
    """
    root = ET.Element(
        "ANNOTATION_DOCUMENT",
        {
            "AUTHOR": "Mien",
            "DATE": datetime.now(UTC).isoformat(timespec="seconds"),
            "FORMAT": "3.0",
            "VERSION": "3.0",
            "xmlns:xsi": "http://www.w3.org/2001/XMLSchema-instance",
            "xsi:noNamespaceSchemaLocation": _SCHEMA,
        },
    )
    header = ET.SubElement(root, "HEADER", {"MEDIA_FILE": "", "TIME_UNITS": "milliseconds"})
    link = {"MEDIA_URL": media, "RELATIVE_MEDIA_URL": media, "MIME_TYPE": mime_type}
    ET.SubElement(header, "MEDIA_DESCRIPTOR", link)
    times_ms = sorted({_ms(time_s) for episode in episodes for time_s in (episode.onset_s, episode.offset_s)})
    slots = {time_ms: f"ts{number}" for number, time_ms in enumerate(times_ms, start=1)}
    order = ET.SubElement(root, "TIME_ORDER")
    for time_ms, slot in slots.items():
        ET.SubElement(order, "TIME_SLOT", {"TIME_SLOT_ID": slot, "TIME_VALUE": str(time_ms)})
    numbers = itertools.count(1)
    tiers: dict[str, list[Episode]] = {}
    for episode in sorted(episodes, key=lambda episode: episode.person):
        tiers.setdefault(_printable(name(episode.person)), []).append(episode)
    for tier_id, its_episodes in tiers.items():
        tier = ET.SubElement(root, "TIER", {"LINGUISTIC_TYPE_REF": _EXPRESSIONS, "TIER_ID": tier_id})
        for episode in _in_order(its_episodes):
            ids = {"ANNOTATION_ID": f"a{next(numbers)}", "TIME_SLOT_REF1": slots[_ms(episode.onset_s)]}
            ids["TIME_SLOT_REF2"] = slots[_ms(episode.offset_s)]
            aligned = ET.SubElement(ET.SubElement(tier, "ANNOTATION"), "ALIGNABLE_ANNOTATION", ids)
            ET.SubElement(aligned, "ANNOTATION_VALUE").text = episode.label
    kind = {"GRAPHIC_REFERENCES": "false", "LINGUISTIC_TYPE_ID": _EXPRESSIONS, "TIME_ALIGNABLE": "true"}
    ET.SubElement(root, "LINGUISTIC_TYPE", kind)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _in_order(episodes: Iterable[Episode]) -> list[Episode]:
    return sorted(episodes, key=lambda episode: (episode.onset_s, episode.person))


def _ms(time_s: float) -> int:
    return round(1000 * time_s)


def _span(episode: Episode, point: str) -> str:
    return f"{_clock(episode.onset_s, point)} --> {_clock(episode.offset_s, point)}"


def _clock(time_s: float, point: str) -> str:
    """`01:02:03.450`."""
    seconds, milliseconds = divmod(_ms(time_s), 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{milliseconds:03}"


def _line(episode: Episode, name: Name) -> str:
    return f"{_printable(name(episode.person))}: {episode.label}"


def _printable(text: str) -> str:
    """One line, without characters that XML forbids."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
