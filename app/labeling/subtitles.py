"""Episodes of a video as subtitles (SubRip, WebVTT) and as an annotation of ELAN (EAF 3.0).

Players do not show the voice of a WebVTT cue, so its text has the person, too.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree as ET

from mien.app.inference.episodes import Episode

Name = Callable[[int], str]  # of a person by number
_SCHEMA: Final = "http://www.mpi.nl/tools/elan/EAFv3.0.xsd"
_EXPRESSIONS: Final = "expression"


def srt(episodes: Iterable[Episode], name: Name) -> str:
    """SubRip: one subtitle per episode."""
    return "".join(
        f"{number}\n{_span(episode, ',')}\n{_line(episode, name)}\n\n"
        for number, episode in enumerate(_in_order(episodes), start=1)
    )


def vtt(episodes: Iterable[Episode], name: Name) -> str:
    """WebVTT: one cue per episode, with the person as its voice."""
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
