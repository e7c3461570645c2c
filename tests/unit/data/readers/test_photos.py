"""Photos with faces detected by `mien label`: aligned as in serving, without labels."""

from pathlib import Path

import numpy as np

from mien.app.labeling.columns import FACE_COLUMNS
from mien.data.contract import align, decode
from mien.data.readers.base import open_reader
from tests.data_sets import make_photos


def test_faces_are_aligned_by_the_landmarks_of_the_table_and_have_no_label(tmp_path: Path) -> None:
    reader = open_reader("photos", make_photos(tmp_path))
    sample = reader.samples("train")[0]
    assert (sample.key, sample.label, reader.path_of(sample)) == ("000.png#000", None, "000.png")
    photo = decode((tmp_path / "000.png").read_bytes())
    assert np.array_equal(reader.crop(sample), align(photo, np.asarray(sample.landmarks_px, dtype=np.float32)))


def test_small_and_doubtful_faces_and_empty_photos_are_left_out_and_counted(tmp_path: Path) -> None:
    table = make_photos(tmp_path) / "labels.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    empty = "003.png," + "," * (lines[0].count(",") - 1)
    doubtful = lines[3].replace(",0.95,", ",0.7,")
    table.write_text("\n".join([*lines[:3], doubtful, empty]) + "\n", encoding="utf-8")
    reader = open_reader("photos", tmp_path)
    assert [sample.key for sample in reader.samples("train")] == ["000.png#000", "001.png#000"]
    assert reader.left_out("train") == {"score below 0.8": 1, "no face": 1}
    small = open_reader("photos", tmp_path, min_face_px=100)
    assert small.samples("train") == []
    assert small.left_out("train") == {"smaller than 100 px": 3, "no face": 1}


def test_faces_in_videos_and_archives_are_left_out_and_counted(tmp_path: Path) -> None:
    table = make_photos(tmp_path) / "labels.csv"
    head, first, *others = table.read_text(encoding="utf-8").splitlines()
    (tmp_path / "more.tar").write_bytes(b"an archive")
    (tmp_path / "clip.mp4").write_bytes(b"a video")
    lines = [f"{head},frame", f"{first},", f"{others[0].replace('001.png', 'clip.mp4')},0"]
    lines += [f"{others[1].replace('002.png', 'clip.mp4')},5", f"{others[2].replace('003.png', 'more.tar/a/003.png')},"]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    reader = open_reader("photos", tmp_path)
    assert [sample.key for sample in reader.samples("train")] == ["000.png#000"]
    assert reader.left_out("train") == {"in a video or a TIFF with several pages": 2, "in an archive": 1}


def test_the_columns_are_those_that_labeling_writes(tmp_path: Path) -> None:
    head = (make_photos(tmp_path) / "labels.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert set(head) <= {column.name for column in FACE_COLUMNS}
