"""ONNX graph of a detector, with YuNet's output names and layout, and its comparison with torch."""

from pathlib import Path
from typing import Final

import numpy as np
import torch

from mien.data.contract import Array
from mien.models.detector.decode import OUTPUTS
from mien.models.detector.network import FaceFPN, Released
from mien.training.evaluate import open_graph
from mien.training.release.graphs import ExportError, export_onnx

MAX_DIFFERENCE: Final = 1e-3  # of a score, or of a box or landmark in cells
_SIDES: Final = ((64, 96), (320, 256))


def write_graph(network: FaceFPN, path: Path) -> None:
    """Export with dynamic batch and sides (multiples of 32) and check the model."""
    sides = {2: 32 * torch.export.Dim("rows", min=1, max=256), 3: 32 * torch.export.Dim("columns", min=1, max=256)}
    export_onnx(
        Released(network),
        torch.zeros(2, 3, 64, 96),
        path,
        input_name="input",
        output_names=OUTPUTS,
        dynamic_shape={0: torch.export.Dim("images", min=1, max=4096)} | sides,
    )


@torch.no_grad()
def check_graph(network: FaceFPN, path: Path, image: Array) -> float:
    """Largest difference of an output between ONNX and torch on an image (H, W, 3) uint8 BGR. Raises: ExportError."""
    session, released, worst = open_graph(path), Released(network).eval(), 0.0
    for height, width in _SIDES:
        pixels = np.resize(image, (height, width, 3)).transpose(2, 0, 1)[None].astype(np.float32)
        expected = released(torch.from_numpy(pixels))
        outputs = session.run(list(OUTPUTS), {"input": pixels})
        worst = max(worst, *(float(np.abs(a.numpy() - b).max()) for a, b in zip(expected, outputs, strict=True)))
    if not worst <= MAX_DIFFERENCE:
        raise ExportError(f"{path.name}: an output differs from torch by {worst:.2e}, more than {MAX_DIFFERENCE:g}")
    return worst
