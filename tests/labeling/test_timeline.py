"""Videos: numbers and names of people in the timeline, smoothing, and episodes of a made clip with known times."""

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import cv2
import pytest

from mien.app.inference.records import Face
from mien.app.labeling.outputs.timeline import COLUMNS, rows, write_page
from mien.app.labeling.people import RULES, People, naming_of
from mien.app.labeling.records import Input, Result
from mien.app.settings import Settings, load_settings
from mien.data.contract import LABELS, decode
from tests.support import face_of, sample_photo
from tests.support.albums import label_folder, rows_of, write_video

LEFT, RIGHT = (0.0, 0.0, 50.0, 50.0), (200.0, 0.0, 40.0, 40.0)
RATE = 8.0
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


def test_tables_subtitles_and_the_annotation_have_the_times_of_the_clip(
    clip: Path, released: Settings, tmp_path: Path
) -> None:
    label_folder(clip, tmp_path, released, "episodes", "csv", every=1)
    (episode,) = rows_of(tmp_path, "episodes.csv")
    assert (episode["file"], episode["person"], episode["label"]) == ("my smile.mp4", "1", "happiness")
    assert [float(episode[name]) for name in ("onset_s", "offset_s", "duration_s")] == [1.0, 3.0, 2.0]
    faces = [row for row in rows_of(tmp_path) if row["face"]]
    assert float(episode["peak"]) == pytest.approx(max(float(row["p_happiness"]) for row in faces), abs=1e-5)
    shown, rest = rows_of(tmp_path, "expression_time.csv")
    assert (shown["label"], shown["shown_s"], shown["seen_s"], float(shown["share"])) == ("happiness", "2.0", "2.0", 1)
    assert (rest["label"], float(rest["share"])) == ("", 0)
    srt_file, vtt_file, eaf_file = (
        tmp_path / "episodes" / f"my smile.mp4.{suffix}" for suffix in ("srt", "vtt", "eaf")
    )
    assert srt_file.read_text() == "1\n00:00:01,000 --> 00:00:03,000\nperson 1: happiness\n\n"
    assert vtt_file.read_text() == "WEBVTT\n\n00:00:01.000 --> 00:00:03.000\n<v person 1>person 1: happiness\n\n"
    document = ET.fromstring(eaf_file.read_bytes())  # noqa: S314  # written here
    times = {slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE") for slot in document.iter("TIME_SLOT")}
    (annotation,) = document.iter("ALIGNABLE_ANNOTATION")
    assert [times[annotation.get(f"TIME_SLOT_REF{number}")] for number in (1, 2)] == ["1000", "3000"]
    (media,) = document.iter("MEDIA_DESCRIPTOR")
    assert (eaf_file.parent / str(media.get("RELATIVE_MEDIA_URL"))).resolve().is_file()  # ELAN does not decode %20


def test_only_the_chosen_part_of_a_video_is_labeled(clip: Path, tmp_path: Path, released: Settings) -> None:
    label_folder(clip, tmp_path, released, "csv", start=2.5, end=3.25, every=1)
    assert [float(row["time_s"]) for row in rows_of(tmp_path)] == [2.5 + number / RATE for number in range(6)]
    label_folder(clip, tmp_path, released, "csv", start=60.0)  # the video is shorter
    assert [row["reason"] for row in rows_of(tmp_path)] == ["outside_part"]
