"""Loss of the detector and assignment of faces to cells.

A face is assigned to the cells around its center on the strides for its size, at least one; a cell near several faces
gets the smallest. In the other cells, the outputs of the teacher can be learned. Scores use quality focal loss (Li et
al. 2020) with target 1 for the class and the IoU of the predicted box for the objectness; boxes use GIoU; landmarks use
smooth L1 relative to the size of the face.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_iou, generalized_box_iou_loss

from mien.models.detector.decode import STRIDES
from mien.models.detector.network import Grid
from mien.training.detector.config import DetectorLoss

SIZES_PX: Final = {8: (0.0, 40.0), 16: (30.0, 110.0), 32: (80.0, 1e9)}  # face sizes assigned to each stride
_NEAR: Final = 1.5  # faces beyond the sizes of a stride by up to this factor are ignored there
_REACH_CELLS: Final = (0.8, 1.6)  # minimum and maximum distance from the center of assigned cells
_REACH_SHARE: Final = 0.16  # of the size of the face, between these limits
_IGNORE_SHARE: Final = 0.35  # unassigned cells within this share of the size from the center are ignored
_BETA: Final = 0.01  # of smooth L1
_GAMMA: Final = 2.0
_SEEN_SCORE: Final = 0.3  # of the teacher in a cell, from which its box and landmarks are learned there
_SAME_IOU: Final = 0.4
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Targets of one sample: faces (N, 14) float32, box and landmarks in pixels; ignored boxes (M, 4).

    cells: the teacher's outputs (cells, 16), to be learned where no face is assigned; or none, for background there.
    """

    faces: Tensor
    ignored: Tensor
    cells: Tensor


@cache  # on the device, to which a copy in each step would wait
def cells(img_height: int, img_width: int, device: torch.device = _CPU) -> tuple[Tensor, Tensor]:
    """Corners (cells, 2) of all cells, x then y in units of their stride, and their strides (cells,)."""
    corners, strides = [], []
    for stride in STRIDES:
        y, x = torch.meshgrid(torch.arange(img_height // stride), torch.arange(img_width // stride), indexing="ij")
        corners.append(torch.stack([x.flatten(), y.flatten()], dim=1).float())
        strides.append(torch.full((x.numel(),), float(stride)))
    return torch.cat(corners).to(device), torch.cat(strides).to(device)


def assign(targets: Targets, corners: Tensor, strides: Tensor) -> tuple[Tensor, Tensor]:
    """Assign faces to cells.

    Returns: the face of each cell or -1, (cells,) int64, and whether its score is in the loss, (cells,) bool.
    """
    centers = (corners + 0.5) * strides[:, None]  # (cells, 2) px
    low, high = _REACH_CELLS
    counts = ~_inside(centers, targets.ignored)
    if not len(targets.faces):
        return torch.full((len(centers),), -1), counts
    order = torch.argsort(targets.faces[:, 2:4].amax(dim=1))  # the smallest first: it gets the cell
    boxes = targets.faces[order, :4]
    size, middle = boxes[:, 2:].amax(dim=1, keepdim=True), boxes[:, :2] + boxes[:, 2:] / 2
    distance = (centers - middle[:, None]).abs().amax(dim=2)  # (faces, cells)
    reach = (_REACH_SHARE * size).clamp(min=low * strides, max=high * strides)
    least, most = torch.tensor([SIZES_PX[stride] for stride in STRIDES])[strides.log2().long() - 3].T
    learns = (size >= least) & (size <= most) & (distance <= reach)
    # at least the nearest cell on the finest stride for the size
    fine = torch.where(size <= most, strides, torch.inf).amin(dim=1, keepdim=True)
    nearest = torch.where(strides == fine, distance, torch.inf).argmin(dim=1)
    learns[torch.arange(len(learns)), nearest] = True
    near = (distance <= _IGNORE_SHARE * size) & (size >= least / _NEAR) & (size <= most * _NEAR)
    first = (learns | near).byte().argmax(dim=0)  # the smallest face of each cell, if it has any
    counts = torch.where((learns | near).any(dim=0), learns.gather(0, first[None])[0], counts)
    face = torch.where(learns.any(dim=0), order[learns.byte().argmax(dim=0)], -1)
    return face, counts


def _inside(points: Tensor, boxes: Tensor) -> Tensor:
    low, high = boxes[None, :, :2], boxes[None, :, :2] + boxes[None, :, 2:]
    return ((points[:, None] >= low) & (points[:, None] <= high)).all(dim=2).any(dim=1)


class CellTargets(NamedTuple):
    """Targets of the cells of one sample, or stacked (B, ...) those of a batch."""

    assigned: Tensor  # (cells,) bool: has a labeled face
    taught: Tensor  # (cells,) bool: has a box and landmarks to learn
    counts: Tensor  # (cells,) bool: has scores to learn
    faces: Tensor  # (cells, 14) px
    scores: Tensor  # (cells, 2) class and objectness, where no face is assigned


def cell_targets(targets: Targets, corners: Tensor, strides: Tensor) -> CellTargets:
    """Targets of each cell: an assigned face, else the teacher's outputs, or background if there are none.

    A face that the teacher sees in a cell gets its label, the mean of several views.
    """
    face, counts = assign(targets, corners, strides)
    assigned = taught = face >= 0
    scores, faces = torch.zeros(len(face), 2), torch.zeros(len(face), 14)
    if len(targets.cells):
        scores, faces = targets.cells[:, :2], _decoded(targets.cells, corners, strides)
        counts, taught = torch.ones_like(counts), assigned | (scores.prod(dim=1).sqrt() >= _SEEN_SCORE)
        if len(targets.faces):
            overlap, nearest = box_iou(_corners(faces), _corners(targets.faces)).max(dim=1)
            faces = torch.where(overlap[:, None] >= _SAME_IOU, targets.faces[nearest], faces)
    faces[assigned] = targets.faces[face[assigned]]
    return CellTargets(assigned, taught, counts, faces, scores)


def losses(grids: list[Grid], targets: CellTargets, weights: DetectorLoss) -> dict[str, Tensor]:
    """Compute `loss` and its parts for a batch, whose targets are on the same device."""
    cls, obj, bbox, kps = (
        torch.cat([getattr(grid, kind).flatten(2) for grid in grids], dim=2).transpose(1, 2) for kind in Grid._fields
    )
    height, width = grids[0].cls.shape[2:]
    corners, strides = cells(height * STRIDES[0], width * STRIDES[0], bbox.device)
    image, cell = torch.nonzero(targets.taught, as_tuple=True)
    wanted, is_assigned = targets.faces[image, cell], targets.assigned[image, cell]
    true = _corners(wanted)
    taught, stride = bbox[image, cell], strides[cell, None]
    center, size = (corners[cell] + taught[:, :2]) * stride, taught[:, 2:].clamp(max=6).exp() * stride
    predicted = torch.cat([center - size / 2, center + size / 2], dim=1)  # corners (P, 4), px
    iou = _paired_iou(predicted.detach(), true)
    points = (kps[image, cell].reshape(-1, 5, 2) + corners[cell][:, None]) * strides[cell][:, None, None]  # px
    errors = (points - wanted[:, 4:].reshape(-1, 5, 2)) / wanted[:, 2:4].amax(dim=1)[:, None, None]  # of the face
    positives = max(1, len(image))
    parts = {
        "scores": _scores_loss(cls[..., 0], obj[..., 0], targets, iou[is_assigned]) / is_assigned.sum().clamp(min=1),
        "boxes": generalized_box_iou_loss(predicted, true, reduction="sum") / positives,
        "landmarks": F.smooth_l1_loss(errors, torch.zeros_like(errors), beta=_BETA, reduction="sum") / positives / 10,
    }
    total = sum((getattr(weights, name) * part for name, part in parts.items()), torch.zeros(()))
    return {"loss": total, **parts}


def _corners(boxes: Tensor) -> Tensor:
    """Corners (N, 4) of boxes (N, 4 or more): x, y, width, height."""
    return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:4]], dim=1)


def _decoded(outputs: Tensor, origin: Tensor, stride: Tensor) -> Tensor:
    """Faces (cells, 14) in pixels of YuNet's outputs (cells, 16)."""
    center, size, points = outputs[:, 2:4] + origin, outputs[:, 4:6].exp(), outputs[:, 6:] + origin.repeat(1, 5)
    return torch.cat([center - size / 2, size, points], dim=1) * stride[:, None]


def _paired_iou(a: Tensor, b: Tensor) -> Tensor:
    common = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(dim=1)
    areas = (a[:, 2:] - a[:, :2]).prod(dim=1) + (b[:, 2:] - b[:, :2]).prod(dim=1)
    return common / (areas - common).clamp(min=1e-9)


def _scores_loss(cls: Tensor, obj: Tensor, targets: CellTargets, iou: Tensor) -> Tensor:
    """Quality focal loss of both scores, (B, cells) each, summed over the cells that count.

    Args:
        iou: of the boxes in the assigned cells.
    """
    total = cls.new_zeros(())
    for kind, (logits, quality) in enumerate(((cls, torch.ones_like(iou)), (obj, iou.clamp(0, 1)))):
        target = targets.scores[..., kind].masked_scatter(targets.assigned, quality)
        focal = (logits.sigmoid() - target).abs() ** _GAMMA
        entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        total = total + (focal * entropy * targets.counts).sum()
    return total
