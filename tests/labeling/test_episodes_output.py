"""Episodes of a made clip with known times: the tables, the subtitles and the annotation of ELAN."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import cv2
import numpy as np
import pytest
from PIL import Image

from mien.app.inference.episodes import Episode
from mien.app.labeling.outputs.episodes import eaf, srt, vtt
from mien.app.settings import Settings, load_settings
from tests.support import sample_photo
from tests.support.albums import label_folder, rows_of, write_video

RATE = 8.0


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smiling face from second 1 to 3 of 4."""
    folder = tmp_path_factory.mktemp("clips")
    face = np.asarray(Image.open(sample_photo()).convert("RGB").resize((256, 256)))
    empty = cv2.GaussianBlur(face, (0, 0), 60)
    images = [face if 1 <= number / RATE < 3 else empty for number in range(int(4 * RATE))]
    return write_video(folder / "my smile.mp4", images=images, rate=RATE)


@pytest.fixture(scope="module")
def released() -> Settings:
    return load_settings(detector="builtin", device="cpu")


@pytest.fixture(scope="module")
def out(clip: Path, released: Settings) -> Path:
    label_folder(clip, clip.parent / "out", released, "episodes", "csv", every=1)
    return clip.parent / "out"


def test_the_episode_has_the_times_of_the_clip(out: Path) -> None:
    (episode,) = rows_of(out, "episodes.csv")
    assert (episode["file"], episode["person"], episode["label"]) == ("my smile.mp4", "1", "happiness")
    assert [float(episode[name]) for name in ("onset_s", "offset_s", "duration_s")] == [1.0, 3.0, 2.0]
    faces = [row for row in rows_of(out) if row["face"]]
    assert float(episode["peak"]) == pytest.approx(max(float(row["p_happiness"]) for row in faces), abs=1e-5)
    mean = np.mean([float(row["agreement"]) for row in faces])
    assert float(episode["agreement"]) == pytest.approx(mean, abs=1e-5)
    shown, rest = rows_of(out, "expression_time.csv")
    assert (shown["label"], shown["shown_s"], shown["seen_s"], float(shown["share"])) == ("happiness", "2.0", "2.0", 1)
    assert (rest["label"], float(rest["share"])) == ("", 0)


def test_subtitles_and_the_annotation_have_the_episode(out: Path) -> None:
    assert (out / "episodes" / "my smile.mp4.srt").read_text(encoding="utf-8") == (
        "1\n00:00:01,000 --> 00:00:03,000\nperson 1: happiness\n\n"
    )
    assert (out / "episodes" / "my smile.mp4.vtt").read_text(encoding="utf-8") == (
        "WEBVTT\n\n00:00:01.000 --> 00:00:03.000\n<v person 1>person 1: happiness\n\n"
    )
    document = ET.fromstring((out / "episodes" / "my smile.mp4.eaf").read_bytes())  # noqa: S314  # written here
    times = {slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE") for slot in document.iter("TIME_SLOT")}
    (annotation,) = document.iter("ALIGNABLE_ANNOTATION")
    assert [times[annotation.get(f"TIME_SLOT_REF{number}")] for number in (1, 2)] == ["1000", "3000"]
    assert annotation.findtext("ANNOTATION_VALUE") == "happiness"
    (media,) = document.iter("MEDIA_DESCRIPTOR")
    assert (out / "episodes" / str(media.get("RELATIVE_MEDIA_URL"))).resolve().is_file()  # ELAN does not decode %20


def test_times_beyond_an_hour_are_written_in_hours() -> None:
    assert srt([Episode(2, "anger", 3725.5, 3726.25)], lambda person: f"P{person}") == (
        "1\n01:02:05,500 --> 01:02:06,250\nP2: anger\n\n"
    )


def test_people_with_the_same_name_share_a_tier_and_odd_names_stay_on_one_line() -> None:
    episodes = [Episode(2, "anger", 4, 5), Episode(1, "fear", 1, 2), Episode(3, "fear", 2, 3)]
    names = {1: "Anna", 2: "Anna", 3: "<b>\n\n\x00--> B"}
    document = ET.fromstring(eaf(episodes, names.__getitem__, media="a.mp4").encode())  # noqa: S314  # written here
    tiers = {tier.get("TIER_ID"): [value.text for value in tier.iter("ANNOTATION_VALUE")] for tier in document}
    assert {name: values for name, values in tiers.items() if name} == {
        "Anna": ["fear", "anger"],
        "<b> --> B": ["fear"],
    }
    assert srt(episodes, names.__getitem__).split("\n\n")[1].splitlines()[-1] == "<b> --> B: fear"
    assert "<v &lt;b&gt; --&gt; B>&lt;b&gt; --&gt; B: fear\n\n" in vtt(episodes, names.__getitem__)


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ({"start": 2.5, "end": 3.25, "every": 1}, [(f"{2.5 + number / RATE}", "") for number in range(6)]),
        ({"start": 60.0}, [("", "outside_part")]),  # the video is shorter
    ],
)
def test_only_the_chosen_part_of_a_video_is_labeled(
    clip: Path, tmp_path: Path, released: Settings, part: dict[str, Any], rows: list[tuple[str, str]]
) -> None:
    label_folder(clip, tmp_path, released, "csv", "episodes", **part)
    assert [(row["time_s"], row["reason"]) for row in rows_of(tmp_path)] == rows
