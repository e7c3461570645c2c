"""Videos: numbers of people, their strips in the report, and episodes of a made clip with known times."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import pytest

from mien.app.inference.records import Face
from mien.app.labeling.people import people_of
from mien.app.labeling.records import Input, Result
from mien.app.labeling.strips import PEOPLE, render_strips
from mien.app.settings import Settings, load_settings
from mien.data.contract import LABELS, decode
from tests.support import encoded, face_of, sample_photo
from tests.support.albums import face_photo, label_folder, rows_of, write_video

LEFT, RIGHT = (0.0, 0.0, 50.0, 50.0), (200.0, 0.0, 40.0, 40.0)
RATE = 8.0
HAPPY, SAD = LABELS.index("happiness"), LABELS.index("sadness")


def face(number: int, box: tuple[float, float, float, float], label: int) -> Face:
    probabilities = dict.fromkeys(LABELS, 0.02) | {LABELS[label]: 0.88}
    return face_of(probabilities, box=box, index=number)


def image(frame: int, time_s: float, *faces: Face, name: str = "clip.mp4") -> Result:
    item = Input(name, "video", f"/{name}".encode(), 1, parent=1, frame=frame, time_s=time_s)
    return Result(item, "ok" if faces else "no_face", sha256=name, width=400, height=300, faces=faces)


def journal_of(*images: Result) -> Any:
    return SimpleNamespace(
        videos=lambda: sorted({image.input.name for image in images}),
        frames=lambda name: (image for image in images if image.input.name == name),
        thumb=lambda *_: None,
        expressions=LABELS,
        facts={"confidence_threshold": "0.5"},
    )


def test_people_keep_their_number_and_a_video_begins_with_person_1() -> None:
    images = [image(frame, frame / 10, face(0, LEFT, HAPPY), face(1, RIGHT, SAD)) for frame in range(5)]
    images += [image(frame, frame / 10, face(0, RIGHT, SAD), name="other.mp4") for frame in range(2)]
    journal = journal_of(*images)
    assert people_of(journal, "clip.mp4") == {(frame, number): number + 1 for frame in range(5) for number in range(2)}
    assert people_of(journal, "other.mp4") == {(0, 0): 1, (1, 0): 1}


def test_a_strip_has_the_share_of_each_expression_where_its_person_is_there() -> None:
    crop = decode(encoded(face_photo(), "PNG"))
    images = [
        image(
            second,
            float(second),
            face(0, RIGHT, SAD),
            *([replace(face(1, LEFT, HAPPY), crop_rgb=crop)] if second not in range(4, 9) else []),
            name="<b>.mp4",
        )
        for second in range(11)
    ]
    html = render_strips(journal_of(*images))
    assert "<h3>&lt;b&gt;.mp4</h3>" in html
    sad, happy = html.split("<svg ")[1:]
    assert "person 1" in html.split("<svg ")[0]
    for picture, label, spells in ((sad, "sadness", ["0.0"]), (happy, "happiness", ["0.0", "900.0"])):
        assert f"on average {label} 88%" in picture
        areas = [area for area in picture.split("<polygon ") if f"<title>{label}</title>" in area]
        assert [area.split('points="')[1].split(",")[0] for area in areas] == spells, "one area per spell"
    (first, *_) = [area for area in sad.split("<polygon ") if "<title>sadness</title>" in area]
    heights = [100 - float(point.split(",")[1]) for point in first.split('points="')[1].split('"')[0].split()]
    assert heights[:3] == pytest.approx([88 + 2 * SAD] * 3, abs=0.1), "stacked on the expressions below"


def test_a_strip_shows_the_people_who_are_seen_most_and_counts_the_others() -> None:
    boxes = [(100.0 * number, 0.0, 50.0, 50.0) for number in range(PEOPLE + 2)]
    images = [
        image(frame, frame / 10, *(face(index, box, HAPPY) for index, box in enumerate(boxes[: 2 + 4 * frame])))
        for frame in range(4)
    ]
    html = render_strips(journal_of(*images))
    assert html.count("<svg ") == PEOPLE
    assert "2 more, who are in fewer frames" in html


@pytest.fixture(scope="module")
def released() -> Settings:
    return load_settings(detector="builtin", device="cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smiling face from second 1 to 3 of 4."""
    face = cv2.resize(decode(sample_photo().read_bytes()), (256, 256))
    empty = cv2.GaussianBlur(face, (0, 0), 60)
    images = [face if 1 <= number / RATE < 3 else empty for number in range(int(4 * RATE))]
    return write_video(tmp_path_factory.mktemp("clips") / "my smile.mp4", images=images, rate=RATE)


def test_the_tables_have_the_times_and_the_person_of_the_clip(clip: Path, released: Settings, tmp_path: Path) -> None:
    label_folder(clip, tmp_path, released, "episodes", "csv", every=1)
    (episode,) = rows_of(tmp_path, "episodes.csv")
    assert (episode["file"], episode["person"], episode["label"]) == ("my smile.mp4", "1", "happiness")
    assert [float(episode[name]) for name in ("onset_s", "offset_s", "duration_s")] == [1.0, 3.0, 2.0]
    faces = [row for row in rows_of(tmp_path) if row["face"]]
    assert {row["person"] for row in faces} == {"1"}
    assert float(episode["peak"]) == pytest.approx(max(float(row["p_happiness"]) for row in faces), abs=1e-5)


def test_only_the_chosen_part_of_a_video_is_labeled(clip: Path, tmp_path: Path, released: Settings) -> None:
    part, after = tmp_path / "part", tmp_path / "after"
    label_folder(clip, part, released, "csv", start=2.5, end=3.25, every=1)
    assert [float(row["time_s"]) for row in rows_of(part)] == [2.5 + number / RATE for number in range(6)]
    label_folder(clip, after, released, "csv", start=60.0)  # the video is shorter
    assert [row["reason"] for row in rows_of(after)] == ["outside_part"]
