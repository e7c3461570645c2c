"""Splits by name, folds, and near-duplicates that stay together."""

from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.data.contract import LABELS, decode
from mien.data.errors import DatasetError
from mien.data.folds import folds_of
from mien.data.near_duplicates import near_duplicate_groups, near_duplicates, thumbnails
from mien.data.readers.base import Sample, hold_out, open_reader
from tests.support import encoded
from tests.support.data_sets import draw_face, make_folders, make_photos, write_csv


def test_the_choice_is_the_same_on_every_machine_whatever_the_order() -> None:
    samples = [Sample(f"train_{number:05}", "train", "fear") for number in range(1, 41)]
    chosen = {"train_00013", "train_00014", "train_00022", "train_00037"}
    assert hold_out(samples, 0.1) == hold_out(samples[::-1], 0.1) == chosen
    assert len(hold_out(samples, 0.575)) == 23, "although 40 * 0.575 is less as floats"


def test_every_class_is_spread_evenly_over_folds_of_equal_sizes(tmp_path: Path) -> None:
    counts = dict(zip(LABELS, (11, 6, 6, 31, 16, 11, 21), strict=True))
    reader = open_reader("folders", make_folders(tmp_path, {"": counts}))
    samples = reader.samples("train")
    folds = folds_of(reader, samples, folds=5)
    found = Counter((sample.label, int(fold)) for sample, fold in zip(samples, folds, strict=True))
    assert all(0 <= found[label, fold] - counts[label] // 5 <= 1 for label in LABELS for fold in range(5))
    assert sorted(Counter(folds.tolist()).values()) == [20, 20, 20, 21, 21]
    assert np.array_equal(folds, folds_of(reader, samples, folds=5))
    with pytest.raises(DatasetError, match="group by photo or near_duplicates"):
        folds_of(reader, samples, folds=2, group_by="person")
    for count, too_many in ((8, 9), (102, 32)):  # images, and those of the most frequent class
        with pytest.raises(DatasetError, match=f"{count} groups by none and .* too few for {too_many} folds"):
            folds_of(reader, samples[:count], folds=too_many)


def test_the_faces_of_a_photo_or_a_person_stay_in_one_fold(tmp_path: Path) -> None:
    table = make_photos(tmp_path / "photos") / "labels.csv"
    head, *rows = table.read_text(encoding="utf-8").splitlines()
    second = [row.replace(".png,0,", ".png,1,") for row in rows]  # a second face in each photo
    table.write_text("\n".join([head, *rows, *second]) + "\n", encoding="utf-8")
    root = make_folders(tmp_path / "export", {"": {"happiness": 8, "neutral": 8}})
    manifest: list[tuple[object, ...]] = [("image", "file", "person", "name")]
    for number in range(8):  # four videos of the same two people, whose expressions differ
        for person, label in enumerate(("happiness", "neutral")):
            moved = (root / label / f"{number:03}.png").rename(root / label / f"{label}{number}.png")
            name = "Anna" if person else ""
            manifest.append((moved.relative_to(root).as_posix(), f"{number // 2}.mp4", person + 1, name))
    write_csv(root / "manifest.csv", manifest)
    (root / "happiness" / "happiness0.png").rename(root / "neutral" / "happiness0.png")  # by hand
    for kind, path, group_by, count in (
        ("photos", tmp_path / "photos", "photo", 4), ("folders", root, "photo", 4), ("folders", root, "person", 5)
    ):  # fmt: skip
        reader = open_reader(kind, path)
        samples = reader.samples("train")
        folds = folds_of(reader, samples, folds=2, group_by=group_by)
        groups = [sample.attributes.get(group_by) or sample.key.split("#")[0] for sample in samples]
        assert len({*zip(groups, folds.tolist(), strict=True)}) == len({*groups}) == count
        assert {*folds} == {0, 1}


def test_near_duplicates_are_grouped_transitively() -> None:
    # 0-1 and 1-2 are alike, 0-2 and 2-3 are not, by 0.94
    rows = np.array([[1.0, 0.0], [0.985, 0.174], [0.94, 0.342], [0.766, 0.643]], np.float32)
    assert near_duplicate_groups(rows).tolist() == [0, 0, 0, 3]


def test_a_changed_copy_is_a_near_duplicate_and_flat_images_and_none_are_not() -> None:
    face, other = (draw_face(label, 1, size_px=48, gray=True)[0] for label in ("happiness", "sadness"))
    own = thumbnails([face, other, np.full((48, 48, 3), 9, np.uint8)])
    darker = (cv2.resize(face, (112, 112)) * 0.6 + 10).astype(np.uint8)
    for copy in (darker, decode(encoded(face, "JPEG", quality=40))):
        found = near_duplicates(own, thumbnails([copy, np.zeros((48, 48, 3), np.uint8)]))
        assert found.tolist() == [True, False, False]
    assert not near_duplicates(own, thumbnails([])).any()
