"""Timelines of persons in videos: numbers, smoothing, and the plot."""

import io
import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mien.app.inference.records import Face
from mien.app.labeling.files import LabelingError
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


def view(*images: Result, out: Path = Path("nowhere"), min_face_px: float = 0) -> Any:
    return SimpleNamespace(
        shown=lambda faces: [face for face in faces if face.box.short_side_px >= min_face_px],
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
    assert "<h3>Ben " in page_of(*frames, out=tmp_path)
    name(frames[3], 0, "Anna")
    name(frames[2], 1, "")
    assert persons() == [(1, "Anna"), (2, None)] * 6
    with (tmp_path / "people.jsonl").open("ab") as file:  # of an earlier version, and truncated
        file.write(
            b'{"file_sha256": "clip.mp4", "action": "split", "who": {"frame": 1, "box": [0, 0, 50, 50]}}\n{"trunc'
        )
    name(frames[2], 1, "Berta")
    assert persons() == [(1, "Anna"), (2, "Berta")] * 6
    frames = [image(number, number * 0.1, face(0, RIGHT, HAPPY)) for number in range(6)]  # another detector
    assert persons() == [(1, "Berta")] * 6
    with pytest.raises(LabelingError, match="number 7"):
        name(frames[0], 7, "Ben")


def test_names_of_people_stay_if_the_named_face_is_left_out(tmp_path: Path) -> None:
    small = (LEFT[0], LEFT[1], 0.9 * LEFT[2], 0.9 * LEFT[3])
    images = [image(0, 0.0, face(0, small, HAPPY)), image(1, 0.1, face(0, LEFT, HAPPY))]
    People(tmp_path).append(naming_of(images[0], 0, "Anna"))
    found = list(rows(view(*images, out=tmp_path, min_face_px=LEFT[2])))
    assert [(row["frame"], row["person"], row["name"]) for row in found] == [(1, 1, "Anna")]


def test_probabilities_are_smoothed_with_the_stated_time_constant() -> None:
    frames = [image(0, 0.0, face(0, LEFT, HAPPY)), image(1, RULES.smoothing_s, face(0, LEFT, SAD))]
    first, second = rows(view(*frames))
    assert first["p_happiness"] == pytest.approx(0.88)
    assert second["p_sadness"] == pytest.approx(0.02 + (1 - math.exp(-1)) * 0.86, abs=1e-5)
    assert "time constant 0.5 s" in COLUMNS[-2].meaning
    assert RULES.smoothing_s == 0.5


def page_of(*images: Result, out: Path = Path("nowhere")) -> str:
    file = io.StringIO()
    write_page(view(*images, out=out), file)
    return file.getvalue()


def corners(page: str) -> list[list[tuple[float, float]]]:
    areas = re.findall(r'points="([^"]+)"', page)
    return [[(float(x), float(y)) for x, y in (one.split(",") for one in area.split())] for area in areas]


def test_the_plot_stacks_seven_areas_to_one() -> None:
    page = page_of(*(image(number, number / 10, face(0, LEFT, HAPPY)) for number in range(11)))
    areas = corners(page)
    assert len(areas) == 7
    assert {y for _, y in areas[0][11:]} == {120.0}, "the first stands on the bottom"
    for below, above in itertools.pairwise(areas):
        assert below[:11] == above[11:][::-1], "each area stands on the one before"
    assert {y for _, y in areas[-1][:11]} == {0.0}, "all seven reach the top"
    assert (areas[0][0][0], areas[0][10][0]) == (0.0, 1000.0)
    assert "time constant of 0.5 s" in " ".join(page.split())


def test_gaps_stay_empty_and_long_sections_are_thinned() -> None:
    here = [image(number, number / 10, face(0, LEFT, HAPPY)) for number in range(10)]
    later = [image(number, number / 10, face(0, LEFT, HAPPY)) for number in range(25, 35)]
    away = [image(number, number / 10) for number in range(10, 25)]
    assert len(corners(page_of(*here, *away, *later))) == 7, "1.6 s are no gap"
    long = [image(number, number / 25, face(0, LEFT, HAPPY)) for number in range(1500)]
    assert max(len(area) for area in corners(page_of(*long))) <= 2 * 400


def test_names_are_escaped_and_short_appearances_counted() -> None:
    page = page_of(image(0, 0.0, face(0, LEFT, HAPPY), name="<b>.mp4"))
    assert "&lt;b&gt;.mp4" in page
    assert "People in fewer than 3 frames: 1." in page
    assert not corners(page)
