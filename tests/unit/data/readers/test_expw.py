"""ExpW, on a drawn tree."""

from pathlib import Path

import numpy as np

from mien.data.contract import fit
from mien.data.readers.base import index_sha256, open_reader
from tests.data_sets import draw_face, make_expw


def test_the_faces_of_one_photo_stay_in_one_split(tmp_path: Path) -> None:
    reader = open_reader("expw", make_expw(tmp_path))
    photos = {split: {sample.key.split("#")[0] for sample in reader.samples(split)} for split in reader.splits()}
    assert reader.splits() == ("train", "valid", "test")
    assert len(photos["valid"]) == len(photos["test"]) == 8
    assert not photos["train"] & (photos["valid"] | photos["test"])
    assert sum(len(reader.samples(split)) for split in reader.splits()) == 2 * 7 * 12


def test_each_face_is_cut_out_by_its_own_box(tmp_path: Path) -> None:
    reader = open_reader("expw", make_expw(tmp_path))
    sample = next(one for one in reader.samples("train") if one.label == "happiness" and one.key.endswith("#1"))
    index = int(sample.key[len("happiness_") :][:3])
    drawn = draw_face("happiness", 10 * index + 1, size_px=100)[0]
    assert np.abs(reader.crop(sample).astype(int) - fit(drawn)).mean() < 30
    assert reader.crop(sample).shape == (112, 112, 3)


def test_a_box_beyond_the_edge_repeats_the_edge(tmp_path: Path) -> None:
    root = make_expw(tmp_path, per_class=1)
    (root / "label" / "label.lst").write_text("anger_000.jpg 0 -20 -10 60 90 50.0 0\n", encoding="utf-8")
    reader = open_reader("expw", root)
    assert reader.crop(reader.samples("train")[0]).shape == (112, 112, 3)


def test_a_corrected_box_changes_the_index(tmp_path: Path) -> None:
    root = make_expw(tmp_path, per_class=1)
    boxes = root / "label" / "label.lst"
    hashes = set()
    for line in ("anger_000.jpg 0 1 2 30 40 50.0 0\n", "anger_000.jpg 0 1 3 30 40 50.0 0\n"):
        boxes.write_text(line, encoding="utf-8")
        hashes.add(index_sha256(open_reader("expw", root), "train"))
    assert len(hashes) == 2, "its crops would be read from the cache of the earlier box"


def test_faces_with_low_confidence_can_be_left_out(tmp_path: Path) -> None:
    reader = open_reader("expw", make_expw(tmp_path), min_confidence="60")
    assert all(sample.key.endswith("#1") for sample in reader.samples("train"))
    assert reader.left_out("train") == {"below min_confidence": len(reader.samples("train"))}
