"""Decoding of a detector's outputs: places, sizes, suppression, thresholds."""

import numpy as np
import pytest

from mien.data.contract import Array
from mien.models.detector.decode import KINDS, STRIDES, decode_grids, to_blob

SIDE = 64


def _grids(**faces: tuple[int, int, float]) -> dict[str, Array]:
    """Empty outputs for an image of 64 px, with faces as stride_N=(column, row, score), each of four cells."""
    grids = {
        f"{kind}_{stride}": np.zeros((1, (SIDE // stride) ** 2, width), np.float32)
        for kind, width in zip(KINDS, (1, 1, 4, 10), strict=True)
        for stride in STRIDES
    }
    for name, (column, row, score) in faces.items():
        stride = int(name.removeprefix("stride_"))
        cell = row * (SIDE // stride) + column
        grids[f"cls_{stride}"][0, cell] = grids[f"obj_{stride}"][0, cell] = score
        grids[f"bbox_{stride}"][0, cell] = [0.5, 0.5, np.log(4), np.log(4)]
        grids[f"kps_{stride}"][0, cell] = np.tile([1.0, -1.0], 5)
    return grids


def _decode(grids: dict[str, Array], threshold: float = 0.6) -> Array:
    return decode_grids(grids, cells_across=SIDE // np.array(STRIDES), threshold=threshold)


def test_a_cell_places_its_face_relative_to_its_corner() -> None:
    (row,) = _decode(_grids(stride_8=(3, 2, 0.9)))
    assert row[:4] == pytest.approx([28 - 16, 20 - 16, 32, 32])
    assert row[4:14].reshape(5, 2) == pytest.approx(np.tile([32.0, 8.0], (5, 1)))
    assert row[14] == pytest.approx(0.9)


def test_nms_keeps_the_better_of_two_overlapping_faces() -> None:
    rows = _decode(_grids(stride_8=(3, 3, 0.7), stride_16=(1, 1, 0.9)))
    assert sorted(rows[:, 14]) == pytest.approx([0.7, 0.9])  # 32 px within 64 px: little overlap
    same = _grids(stride_8=(3, 3, 0.7))
    same["cls_8"][0, 3 * 8 + 4] = same["obj_8"][0, 3 * 8 + 4] = 0.8
    same["bbox_8"][0, 3 * 8 + 4] = [-0.5, 0.5, np.log(4), np.log(4)]
    assert _decode(same)[:, 14] == pytest.approx([0.8])


def test_nothing_reaches_the_threshold_of_an_empty_image() -> None:
    assert _decode(_grids(stride_32=(0, 0, 0.5))).shape == (0, 15)


def test_an_image_is_padded_to_whole_cells_in_planes() -> None:
    image = np.arange(40 * 33 * 3, dtype=np.uint8).reshape(40, 33, 3)
    blob = to_blob(image)
    assert (blob.shape, blob.dtype) == ((1, 3, 64, 64), np.float32)
    assert np.array_equal(blob[0, :, :40, :33].transpose(1, 2, 0), image)
    assert blob[0, :, 40:].max() == 0
