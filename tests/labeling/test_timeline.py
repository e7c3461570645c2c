"""Timelines of persons in videos: numbers, smoothing, and the plot."""

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mien.app.inference.records import Face
from mien.app.labeling.outputs.timeline import COLUMNS, rows, write_page
from mien.app.labeling.people import RULES, People, naming_of
from mien.app.labeling.records import Input, Result
from mien.data.contract import LABELS
from tests.support import face_of

LEFT, RIGHT = (0.0, 0.0, 50.0, 50.0), (200.0, 0.0, 40.0, 40.0)
HAPPY, SAD = LABELS.index("happiness"), LABELS.index("sadness")


def face(number: int, box: tuple[float, float, float, float], label: int) -> Face:
    probabilities = dict.fromkeys(LABELS, 0.02) | {LABELS[label]: 0.88}
    return face_of(probabilities, box=box, index=number)


def image(frame: int, time_s: float, *faces: Face, name: str = "clip.mp4") -> Result:
    item = Input(name, "video", f"/{name}".encode(), 1, parent=1, frame=frame, time_s=time_s)
    return Result(item, "ok" if faces else "no_face", sha256=name, width=400, height=300, faces=faces)


def view(*images: Result, out: Path = Path("nowhere")) -> Any:
    return SimpleNamespace(
        shown=list,
        videos=lambda: sorted({image.input.name for image in images}),
        frames=lambda name: (image for image in images if image.input.name == name),
        thumb=lambda *_: None,
        expressions=LABELS,
        facts={"confidence_threshold": "0.5"},
        out=out,
    )


def test_persons_keep_their_number_and_a_video_begins_with_person_1() -> None:
    images = [image(frame, frame / 10, face(0, LEFT, HAPPY), face(1, RIGHT, SAD)) for frame in range(5)]
    images += [image(frame, frame / 10, face(0, RIGHT, SAD), name="other.mp4") for frame in range(2)]
    found = [(row["file"], row["face"], row["person"], row["label"]) for row in rows(view(*images))]
    assert found[:10] == [("clip.mp4", 0, 1, "happiness"), ("clip.mp4", 1, 2, "sadness")] * 5
    assert found[10:] == [("other.mp4", 0, 1, "sadness")] * 2


def test_people_are_named_by_a_face_and_not_by_their_number(tmp_path: Path) -> None:
    frames = [image(number, number * 0.1, face(0, LEFT, HAPPY), face(1, RIGHT, SAD)) for number in range(6)]

    def persons() -> list[tuple[object, object]]:
        return [(row["person"], row["name"]) for row in rows(view(*frames, out=tmp_path))]

    def name(who: Result, number: int, given: str) -> None:
        People(tmp_path).append(naming_of(who, number, given))

    name(frames[5], 1, "Ben")
    assert persons() == [(1, None), (2, "Ben")] * 6
    name(frames[3], 0, "Anna")
    name(frames[2], 1, "")
    assert persons() == [(1, "Anna"), (2, None)] * 6
    with (tmp_path / "people.jsonl").open("ab") as file:
        file.write(b'{"trunc')
    name(frames[2], 1, "Berta")
    assert persons() == [(1, "Anna"), (2, "Berta")] * 6
    frames = [image(number, number * 0.1, face(0, RIGHT, HAPPY)) for number in range(6)]  # another detector
    assert persons() == [(1, "Berta")] * 6


def test_probabilities_are_smoothed_with_the_stated_time_constant() -> None:
    frames = [image(0, 0.0, face(0, LEFT, HAPPY)), image(1, RULES.smoothing_s, face(0, LEFT, SAD))]
    first, second = rows(view(*frames))
    assert first["p_happiness"] == pytest.approx(0.88)
    assert second["p_sadness"] == pytest.approx(0.02 + (1 - math.exp(-1)) * 0.86, abs=1e-5)
    assert f"time constant {RULES.smoothing_s} s" in COLUMNS[-2].meaning


def test_names_on_the_page_are_escaped() -> None:
    file = io.StringIO()
    write_page(view(*(image(number, number / 10, face(0, LEFT, HAPPY), name="<b>.mp4") for number in range(9))), file)
    assert "&lt;b&gt;.mp4" in file.getvalue()
    assert "<b>.mp4" not in file.getvalue()
