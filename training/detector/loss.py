"""Loss of the detector and assignment of faces to cells.

A face is assigned to the cells around its center on the strides for its size, at least one; a cell near several faces
gets the smallest. Scores use quality focal loss (Li et al. 2020) with target 1 for the class and the IoU of the
predicted box for the objectness; boxes use GIoU; landmarks use smooth L1 relative to the size of the face.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import generalized_box_iou_loss

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


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Targets of one sample: faces (N, 14) float32, box and landmarks in pixels; ignored boxes (M, 4)."""

    faces: Tensor
    ignored: Tensor


def cells(img_height: int, img_width: int) -> tuple[Tensor, Tensor]:
    """Corners (cells, 2) of all cells, x then y in units of their stride, and their strides (cells,)."""
    corners, strides = [], []
    for stride in STRIDES:
        y, x = torch.meshgrid(torch.arange(img_height // stride), torch.arange(img_width // stride), indexing="ij")
        corners.append(torch.stack([x.flatten(), y.flatten()], dim=1).float())
        strides.append(torch.full((x.numel(),), float(stride)))
    return torch.cat(corners), torch.cat(strides)


def assign(targets: Targets, corners: Tensor, strides: Tensor) -> tuple[Tensor, Tensor]:
    """Assign faces to cells.

    Returns: the face of each cell or -1, (cells,) int64, and whether its score is in the loss, (cells,) bool.
    """
    centers = (corners + 0.5) * strides[:, None]  # (cells, 2) px
    low, high = _REACH_CELLS
    counts = ~_inside(centers, targets.ignored)
    face = torch.full((len(centers),), -1)
    boxes = targets.faces[:, :4]
    size = boxes[:, 2:].amax(dim=1)
    for number in torch.argsort(size, descending=True).tolist():  # smallest last, to overwrite larger ones
        middle = boxes[number, :2] + boxes[number, 2:] / 2
        distance = (centers - middle).abs().amax(dim=1)
        reach = (_REACH_SHARE * size[number]).clamp(min=low * strides, max=high * strides)
        learns = _of_stride(size[number], strides, 1.0) & (distance <= reach)
        # at least the nearest cell on the finest stride for the size
        fine = min(stride for stride, (_, largest) in SIZES_PX.items() if size[number] <= largest)
        learns[torch.where(strides == fine, distance, torch.inf).argmin()] = True
        near = distance <= _IGNORE_SHARE * size[number]
        counts &= ~(near & _of_stride(size[number], strides, _NEAR))
        face[learns] = number
        counts |= learns
    return face, counts


def _of_stride(size: Tensor, strides: Tensor, factor: float) -> Tensor:
    low = torch.zeros_like(strides)
    high = torch.zeros_like(strides)
    for stride, (smallest, largest) in SIZES_PX.items():
        low[strides == stride], high[strides == stride] = smallest / factor, largest * factor
    return (size >= low) & (size <= high)


def _inside(points: Tensor, boxes: Tensor) -> Tensor:
    low, high = boxes[None, :, :2], boxes[None, :, :2] + boxes[None, :, 2:]
    return ((points[:, None] >= low) & (points[:, None] <= high)).all(dim=2).any(dim=1)


def losses(grids: list[Grid], targets: list[Targets], weights: DetectorLoss) -> dict[str, Tensor]:
    """Compute `loss` and its parts for a batch; the targets are on the CPU, which assigns them to cells."""
    cls, obj, bbox, kps = (
        torch.cat([getattr(grid, kind).flatten(2) for grid in grids], dim=2).transpose(1, 2) for kind in Grid._fields
    )
    height, width = grids[0].cls.shape[2:]
    corners, strides = cells(height * STRIDES[0], width * STRIDES[0])
    assigned = [assign(target, corners, strides) for target in targets]
    face, counts = (torch.stack(of_samples) for of_samples in zip(*assigned, strict=True))
    image, cell = torch.nonzero(face >= 0, as_tuple=True)
    first = torch.tensor([0, *(len(target.faces) for target in targets)]).cumsum(0)
    wanted = torch.cat([target.faces for target in targets])[face[image, cell] + first[image]]  # (P, 14) px
    corners, strides, wanted, counts = (tensor.to(bbox.device) for tensor in (corners, strides, wanted, counts))
    true = torch.cat([wanted[:, :2], wanted[:, :2] + wanted[:, 2:4]], dim=1)
    predicted = to_boxes(bbox[image, cell], corners[cell], strides[cell, None])
    iou = _paired_iou(predicted.detach(), true)
    errors = _landmark_errors(kps[image, cell], wanted, corners[cell], strides[cell])
    positives = max(1, len(image))
    parts = {
        "scores": _scores_loss(cls[..., 0], obj[..., 0], (image, cell), counts, iou) / positives,
        "boxes": generalized_box_iou_loss(predicted, true, reduction="sum") / positives,
        "landmarks": F.smooth_l1_loss(errors, torch.zeros_like(errors), beta=_BETA, reduction="sum") / positives / 10,
    }
    total = sum((getattr(weights, name) * part for name, part in parts.items()), torch.zeros(()))
    return {"loss": total, **parts}


def _landmark_errors(kps: Tensor, wanted: Tensor, origin: Tensor, stride: Tensor) -> Tensor:
    """Errors (P, 5, 2), relative to face size, of predictions (P, 10) in cells for faces (P, 14) in pixels."""
    points = (kps.reshape(-1, 5, 2) + origin[:, None]) * stride[:, None, None]
    return (points - wanted[:, 4:].reshape(-1, 5, 2)) / wanted[:, 2:4].amax(dim=1)[:, None, None]


def to_boxes(bbox: Tensor, origin: Tensor, stride: Tensor) -> Tensor:
    """Convert predicted boxes (P, 4) to corners (P, 4) in pixels."""
    center, size = (origin + bbox[:, :2]) * stride, bbox[:, 2:].clamp(max=6).exp() * stride
    return torch.cat([center - size / 2, center + size / 2], dim=1)


def _paired_iou(a: Tensor, b: Tensor) -> Tensor:
    common = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(dim=1)
    areas = (a[:, 2:] - a[:, :2]).prod(dim=1) + (b[:, 2:] - b[:, :2]).prod(dim=1)
    return common / (areas - common).clamp(min=1e-9)


def _scores_loss(cls: Tensor, obj: Tensor, positive: tuple[Tensor, Tensor], counts: Tensor, iou: Tensor) -> Tensor:
    """Quality focal loss of both scores, (B, cells) each, summed over the cells that count."""
    total = cls.new_zeros(())
    for logits, quality in ((cls, torch.ones_like(iou)), (obj, iou.clamp(0, 1))):
        target = torch.zeros_like(logits)
        target[positive] = quality
        focal = (logits.sigmoid() - target).abs() ** _GAMMA
        entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        total = total + (focal * entropy * counts).sum()
    return total
