"""FaceFPN, a small face detector: three strides, a feature pyramid, and the outputs of YuNet (Wu, Peng, Yu 2023).

Convolutions are separable. The heads share their convolutions across strides, with separate normalization per stride
(RTMDet, Lyu et al. 2022). Landmarks are predicted relative to the size of the box.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from mien.models.detector.decode import STRIDES

# Landmarks of a mean face relative to the center and size of its box, to initialize the head.
_MEAN_FACE: Final = (-0.2, -0.12, 0.2, -0.12, 0.0, 0.08, -0.16, 0.27, 0.16, 0.27)
_MAX_LOG_SIZE: Final = 6.0  # a box of 400 cells
_PRIOR: Final = 0.01  # initial probability of a face in a cell (Lin et al. 2017, focal loss)


class Grid(NamedTuple):
    """Predictions of one stride: logits, and boxes and landmarks in cells relative to the corner of the cell.

    cls, obj: (B, 1, H, W). bbox: (B, 4, H, W), center offset and log size. kps: (B, 10, H, W).
    """

    cls: Tensor
    obj: Tensor
    bbox: Tensor
    kps: Tensor


def _separable(in_chans: int, out_chans: int, *, stride: int = 1) -> list[nn.Module]:
    depthwise = nn.Conv2d(in_chans, in_chans, 3, stride, 1, groups=in_chans, bias=False)
    return [depthwise, nn.Conv2d(in_chans, out_chans, 1, bias=False)]


class Block(nn.Sequential):
    """Separable convolution with BatchNorm and ReLU, and a residual connection if the shapes match."""

    def __init__(self, in_chans: int, out_chans: int, *, stride: int = 1) -> None:
        super().__init__(*_separable(in_chans, out_chans, stride=stride), nn.BatchNorm2d(out_chans), nn.ReLU())
        self.adds = stride == 1 and in_chans == out_chans

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = super().forward(features)  # type: ignore[no-untyped-call]
        return out + features if self.adds else out


class Branch(nn.Module):
    """Blocks of a head; strides share the convolutions, not the normalization."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Sequential(*_separable(width, width)) for _ in range(depth))
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.BatchNorm2d(width), nn.ReLU()) for _ in STRIDES) for _ in range(depth)
        )

    def forward(self, features: Tensor, level: int) -> Tensor:
        for conv, norms in zip(self.convs, self.norms, strict=True):
            features = norms[level](conv(features)) + features  # type: ignore[index]
        return features


class FaceFPN(nn.Module):
    """Network of the detector.

    Args:
        widths: channels at strides 2, 4, 8, 16 and 32.
        depths: blocks at strides 4, 8, 16 and 32.
        neck_width: channels of the pyramid and the heads.
        heads: blocks of the heads of scores, and of boxes and landmarks.
        centered: subtract 127.5 and divide by 64 first; otherwise, the first BatchNorm learns it, which takes no time.
    """

    def __init__(
        self,
        widths: tuple[int, int, int, int, int],
        depths: tuple[int, int, int, int],
        neck_width: int,
        heads: tuple[int, int],
        *,
        centered: bool = False,
    ) -> None:
        super().__init__()
        self.centered = centered
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 2, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(Block(before, after, stride=2), *(Block(after, after) for _ in range(depth - 1)))
            for before, after, depth in zip(widths[:-1], widths[1:], depths, strict=True)
        )
        self.laterals = nn.ModuleList(nn.Conv2d(width, neck_width, 1) for width in widths[2:])
        self.smooths = nn.ModuleList(Block(neck_width, neck_width) for _ in STRIDES)
        self.classes, self.places = (Branch(neck_width, depth) for depth in heads)
        self.scores = nn.Conv2d(neck_width, 2, 1)
        self.shapes = nn.Conv2d(neck_width, 4 + len(_MEAN_FACE), 1)
        self._init_weights()

    def _init_weights(self) -> None:
        nn.init.normal_(self.scores.weight, std=0.01)
        nn.init.constant_(self.scores.bias, -torch.log(torch.tensor((1 - _PRIOR) / _PRIOR)).item())  # type: ignore[arg-type]
        nn.init.normal_(self.shapes.weight, std=0.01)
        bias = torch.tensor([0.5, 0.5, 1.4, 1.6, *_MEAN_FACE])  # a face of four to five cells
        self.shapes.bias.data.copy_(bias)  # type: ignore[union-attr]

    def forward(self, image: Tensor) -> list[Grid]:
        """Predict for (B, 3, H, W) float32, BGR, 0 to 255, sides multiples of 32; one grid per stride."""
        features = self.stem((image - 127.5) / 64 if self.centered else image)
        levels: list[Tensor] = []
        for stage in self.stages:
            features = stage(features)
            levels.append(features)
        pyramid = self._pyramid(levels[1:])
        return [self._heads(features, level) for level, features in enumerate(pyramid)]

    def _pyramid(self, levels: list[Tensor]) -> list[Tensor]:
        """Add each coarser level to the next finer one, from the top down."""
        out: list[Tensor] = []
        for lateral, smooth, features in zip(self.laterals[::-1], self.smooths[::-1], levels[::-1], strict=True):
            level = lateral(features)
            if out:
                level = level + nn.functional.interpolate(out[-1], scale_factor=2.0, mode="nearest")
            out.append(smooth(level))
        return out[::-1]

    def _heads(self, features: Tensor, level: int) -> Grid:
        classes, places = self.classes(features, level), self.places(features, level)
        with torch.autocast(features.device.type, enabled=False):  # bf16 would round landmarks to tenths of a pixel
            cls, obj = self.scores(classes.float()).split(1, dim=1)
            bbox, kps = self.shapes(places.float()).split([4, len(_MEAN_FACE)], dim=1)
        return Grid(cls, obj, bbox, _in_cells(kps, bbox))


def _in_cells(kps: Tensor, bbox: Tensor) -> Tensor:
    """Convert landmarks (B, 10, H, W) from sizes of the predicted box to cells."""
    size = bbox[:, None, 2:].clamp(max=_MAX_LOG_SIZE).exp()
    points: Tensor = kps.reshape(-1, 5, 2, *kps.shape[2:]) * size + bbox[:, None, :2]
    return points.flatten(1, 2)


class Released(nn.Module):
    """Network for export, with the outputs of YuNet: (N, cells, channels), scores after a sigmoid."""

    def __init__(self, network: FaceFPN) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        grids = self.network(image)
        scores = [[getattr(grid, kind).sigmoid() for grid in grids] for kind in ("cls", "obj")]
        shapes = [[getattr(grid, kind) for grid in grids] for kind in ("bbox", "kps")]
        return tuple(part.flatten(2).transpose(1, 2) for kind in scores + shapes for part in kind)
