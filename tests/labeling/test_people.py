"""Videos: numbers of people, their strips in the report, and episodes of a made clip with known times."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from mien.app.labeling.journal import Result
from mien.app.labeling.report import PEOPLE, render_strips
from mien.app.settings import load_settings
from mien.data.contract import LABELS, decode
from tests.labeling.conftest import Mien
from tests.support import face_of, sample_photo
from tests.support.albums import face_photo, label_folder, rows_of, write_video

RATE = 8.0


def strips(*frames: dict[int, str]) -> str:
    """Strips of a clip of a frame per second, which shows the label of each person."""
    faces = {label: face_of(dict.fromkeys(LABELS, 0.02) | {label: 0.88}) for label in LABELS}
    images = [
        Result("<b>.mp4", b"/", frame=second, time_s=float(second), until_s=second + 1.0)
        for second in range(len(frames))
    ]
    seen = [
        replace(image, faces=tuple(replace(faces[label], person=person) for person, label in people.items()))
        for image, people in zip(images, frames, strict=True)
    ]
    return render_strips(SimpleNamespace(videos=lambda: ["<b>.mp4"], frames=lambda _: seen, expressions=LABELS))


def points_of(area: str) -> list[list[float]]:
    return [
        [float(x) for x in point.split(",")] for point in area.split('points="')[1].split('"', maxsplit=1)[0].split()
    ]


def test_a_strip_has_the_share_of_each_expression_only_where_its_person_is_there() -> None:
    html = strips(*({1: "sadness"} | ({} if second in range(4, 9) else {2: "happiness"}) for second in range(10)))
    assert "<h3>&lt;b&gt;.mp4</h3>" in html
    before, sad, happy = html.split("<svg ")
    assert "person 1" in before
    for picture, label, spells in ((sad, "sadness", [(0, 1000)]), (happy, "happiness", [(0, 400), (900, 1000)])):
        assert f"on average {label} 88%" in picture
        areas = [points_of(area) for area in picture.split("<polygon ") if f"<title>{label}</title>" in area]
        assert [(min(points)[0], max(points)[0]) for points in areas] == spells, "one area per spell"
    below = 2 * LABELS.index("sadness")
    (area,) = [points_of(area) for area in sad.split("<polygon ") if "<title>sadness</title>" in area]
    assert [100 - y for _, y in area[:3]] == pytest.approx([88 + below] * 3, abs=0.1), "stacked on those below"


def test_a_strip_shows_the_people_who_are_seen_most_and_counts_the_others() -> None:
    html = strips(*(dict.fromkeys(range(1, min(3 + 4 * frame, PEOPLE + 3)), "happiness") for frame in range(4)))
    assert html.count("<svg ") == PEOPLE
    assert "2 more, who are in fewer frames" in html


def test_people_keep_their_number_in_a_video_and_every_video_begins_with_person_1(mien: Mien, folder: Path) -> None:
    one, other = face_photo(variant=0), face_photo(variant=1)
    for name, pair in (("a.avi", (one, other)), ("b.avi", (other, one))):
        write_video(folder / name, images=[np.hstack(pair)] * 4)
    rows = mien.label(folder, "--write", "csv")
    people = {(row["file"], row["frame"]): [] for row in rows}
    for row in sorted(rows, key=lambda row: float(row["x"])):
        people[row["file"], row["frame"]].append(row["person"])
    assert all(sorted(numbers) == ["1", "2"] for numbers in people.values())
    for name in ("a.avi", "b.avi"):
        assert len({tuple(people[name, str(frame)]) for frame in range(4)}) == 1, "from left to right"


def test_the_tables_have_the_times_and_the_person_of_a_clip_and_of_its_chosen_part(tmp_path: Path) -> None:
    """A face smiles in the first 2 of 4 seconds."""
    released = load_settings(detector="builtin", device="cpu")
    face = cv2.resize(decode(sample_photo().read_bytes()), (256, 256))
    empty = cv2.GaussianBlur(face, (0, 0), 60)
    images = [face if number < 2 * RATE else empty for number in range(int(4 * RATE))]
    clip = write_video(tmp_path / "my smile.mp4", images=images, rate=RATE)
    whole, part, after = tmp_path / "whole", tmp_path / "part", tmp_path / "after"
    label_folder(clip, whole, released, "episodes", "csv", every=1)
    (episode,) = rows_of(whole, "episodes.csv")
    assert (episode["file"], episode["person"], episode["label"]) == ("my smile.mp4", "1", "happiness")
    assert [float(episode[name]) for name in ("onset_s", "offset_s", "duration_s")] == [0.0, 2.0, 2.0]
    faces = [row for row in rows_of(whole) if row["face"]]
    assert {row["person"] for row in faces} == {"1"}
    assert float(episode["peak"]) == pytest.approx(max(float(row["p_happiness"]) for row in faces), abs=1e-5)
    label_folder(clip, part, released, "csv", start=2.5, end=3.25, every=1)
    assert [float(row["time_s"]) for row in rows_of(part)] == [2.5 + number / RATE for number in range(6)]
    label_folder(clip, after, released, "csv", start=60.0)  # The video is shorter.
    assert [row["reason"] for row in rows_of(after)] == ["outside_part"]
