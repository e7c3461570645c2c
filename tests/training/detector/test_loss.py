"""Loss of the detector: assignment of faces to cells, and values for known predictions."""

import numpy as np
import pytest
import torch

from mien.models.detector.decode import STRIDES
from mien.models.detector.network import Grid
from mien.training.detector.config import DetectorLoss
from mien.training.detector.loss import CellTargets, Targets, assign, cell_targets, cells, losses
from tests.support.detector import drawn_face

NOTHING = torch.zeros(0, 4)
NO_CELLS = torch.zeros(0, 16)


def _losses(grids: list[Grid], targets: Targets) -> dict[str, torch.Tensor]:
    """The loss of one sample."""
    side = grids[0].cls.shape[2] * STRIDES[0]
    batch = CellTargets(*(part[None] for part in cell_targets(targets, *cells(side, side))))
    return losses(grids, batch, DetectorLoss())


def _targets(*faces: tuple[float, float, float]) -> Targets:
    """Faces as (x of the center, y, radius)."""
    rows = [drawn_face(8, (x, y), radius)[1][0, :14] for x, y, radius in faces]
    return Targets(torch.from_numpy(np.array(rows, np.float32).reshape(-1, 14)), NOTHING, NO_CELLS)


@pytest.mark.parametrize(("radius", "stride"), [(5, 8), (35, 16), (120, 32)])
def test_a_face_is_assigned_to_cells_of_the_stride_for_its_size(radius: float, stride: int) -> None:
    corners, strides = cells(256, 256)
    learning = assign(_targets((123, 131, radius)), corners, strides)[0] >= 0
    assert set(strides[learning].tolist()) == {stride}
    assert 1 <= learning.sum() <= 16
    centers = (corners + 0.5) * strides[:, None]
    assert (centers[learning] - torch.tensor([123.0, 131.0])).abs().max() <= 2 * stride


def test_the_smaller_of_two_overlapping_faces_is_assigned() -> None:
    corners, strides = cells(128, 128)
    face, _ = assign(_targets((64, 64, 18), (66, 64, 6)), corners, strides)
    assert 1 in face.tolist()
    nearest = ((corners + 0.5) * strides[:, None] - torch.tensor([66.0, 64.0])).abs().amax(dim=1)
    assert face[nearest.argmin()] == 1


def test_ignored_boxes_and_the_surroundings_of_a_face_do_not_count() -> None:
    corners, strides = cells(128, 128)
    targets = Targets(_targets((32, 32, 15)).faces, torch.tensor([[80.0, 80.0, 40.0, 40.0]]), NO_CELLS)
    face, counts = assign(targets, corners, strides)
    centers = (corners + 0.5) * strides[:, None]
    inside = ((centers > 80) & (centers < 120)).all(dim=1)
    assert not counts[inside].any()
    assert counts[face >= 0].all()
    around = (centers - 32).abs().amax(dim=1).lt(10) & (strides == 8) & (face < 0)
    assert not counts[around].any()
    assert counts[centers[:, 0] > 122].all()


def _perfect(targets: Targets, side: int) -> list[Grid]:
    """Grids that equal the targets."""
    corners, strides = cells(side, side)
    face, _ = assign(targets, corners, strides)
    rows = targets.faces[face.clamp(min=0)]
    scores = torch.where(face >= 0, 12.0, -12.0)[:, None]
    step = strides[:, None]
    bbox = torch.cat([(rows[:, :2] + rows[:, 2:4] / 2) / step - corners, (rows[:, 2:4] / step).log()], dim=1)
    kps = rows[:, 4:] / step - corners.repeat(1, 5)
    grids, start = [], 0
    for stride in STRIDES:
        across = side // stride
        parts = (
            part[start : start + across**2].T.reshape(1, -1, across, across) for part in (scores, scores, bbox, kps)
        )
        grids.append(Grid(*parts))
        start += across**2
    return grids


def test_the_loss_is_zero_for_a_perfect_prediction_and_not_for_a_shifted_landmark() -> None:
    targets = _targets((40, 60, 9), (90, 70, 30))
    grids = _perfect(targets, 128)
    perfect = _losses(grids, targets)
    assert perfect["loss"].item() < 1e-3
    grids[0].kps[:] += 0.5  # 4 px of a face of 18 px
    shifted = _losses(grids, targets)
    assert shifted["landmarks"].item() > 0.05
    assert shifted["boxes"].item() == pytest.approx(perfect["boxes"].item())


def _outputs(grids: list[Grid]) -> torch.Tensor:
    """Outputs (cells, 16) of a teacher whose logits are in these grids."""
    kinds = [torch.cat([getattr(grid, kind)[0].flatten(1) for grid in grids], dim=1).T for kind in Grid._fields]
    return torch.cat([kinds[0].sigmoid(), kinds[1].sigmoid(), *kinds[2:]], dim=1)


def test_boxes_and_scores_of_the_teacher_are_learned_where_no_face_is_assigned() -> None:
    seen = _targets((40, 60, 9))
    grids = _perfect(seen, 128)
    taught = Targets(_targets().faces, torch.tensor([[0.0, 0.0, 128.0, 128.0]]), _outputs(grids))
    assert _losses(grids, taught)["loss"].item() < 1e-3
    other = [Grid(grid.cls - 24, grid.obj, grid.bbox + 0.5, grid.kps + 0.5) for grid in grids]
    parts = _losses(other, taught)
    assert min(parts[name].item() for name in ("scores", "boxes", "landmarks")) > 0.02
