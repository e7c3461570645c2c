"""Episodes of a made clip with known times: the tables, the subtitles and the annotation of ELAN."""

from pathlib import Path
from xml.etree import ElementTree as ET

import cv2
import pytest

from mien.app.settings import Settings, load_settings
from mien.data.contract import decode
from tests.support import sample_photo
from tests.support.albums import label_folder, rows_of, write_video

RATE = 8.0


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
