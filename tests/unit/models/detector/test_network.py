"""FaceFPN: shapes of its grids, first weights, and the layout of its release."""

from copy import deepcopy

import pytest
import torch

from mien.models.detector.decode import OUTPUTS, STRIDES
from mien.models.detector.network import FaceFPN, Released


@pytest.fixture(scope="module")
def network() -> FaceFPN:
    torch.manual_seed(0)
    return FaceFPN((4, 8, 8, 8, 8), (1, 1, 1, 1), 8).eval()


def test_the_release_has_yunets_outputs(network: FaceFPN) -> None:
    outputs = dict(zip(OUTPUTS, Released(network)(torch.rand(2, 3, 64, 96) * 255), strict=True))
    for stride in STRIDES:
        cells = 64 * 96 // stride**2
        widths = {kind: outputs[f"{kind}_{stride}"].shape for kind in ("cls", "obj", "bbox", "kps")}
        assert widths == {"cls": (2, cells, 1), "obj": (2, cells, 1), "bbox": (2, cells, 4), "kps": (2, cells, 10)}
        assert 0 < outputs[f"cls_{stride}"].min() <= outputs[f"cls_{stride}"].max() < 1


def test_training_starts_from_few_faces_with_a_mean_face(network: FaceFPN) -> None:
    grid = network(torch.zeros(1, 3, 64, 64))[0]
    assert grid.cls.sigmoid().max() < 0.05
    left_eye, right_eye = grid.kps[0, :2, 4, 4], grid.kps[0, 2:4, 4, 4]
    middle, width = grid.bbox[0, :2, 4, 4], grid.bbox[0, 2, 4, 4].exp()
    assert torch.allclose((right_eye - left_eye)[0] / width, torch.tensor(0.4), atol=0.1)
    assert left_eye[0] < middle[0] < right_eye[0]


def test_the_finest_grid_uses_the_coarsest_features(network: FaceFPN) -> None:
    image, other = torch.rand(1, 3, 64, 64) * 255, deepcopy(network)
    for weights in other.laterals[-1].parameters():
        torch.nn.init.ones_(weights)
    assert not torch.equal(network(image)[0].bbox, other(image)[0].bbox)
