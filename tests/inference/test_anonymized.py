"""Anonymized copies: a face recognition network does not find the people of real photos again."""

from collections.abc import Sequence

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional

from mien.app.inference.anonymize import anonymize
from mien.app.inference.detect import create_detector
from mien.app.settings import load_settings
from mien.data.contract import Array, align, decode
from mien.models.backbones import BackboneConfig
from mien.models.backbones.mobilefacenet import NAME, PATH_VARIABLE, MobileFaceNet, published_weights
from tests.support import folder_from_environment


def embeddings(crops: Sequence[Array]) -> Array:
    """Unit vectors (N, 128) of faces by MobileFaceNet, with the last layers of the published file."""
    network, weights = MobileFaceNet(BackboneConfig(family=NAME, name=NAME), 7).eval(), published_weights()
    network.load_published(None)
    pixels = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.inference_mode():
        features = network.gdconv(network.last_map(pixels))
        features = functional.conv2d(features, weights["conv3.weight"], weights["conv3.bias"]).flatten(1)
        norm = (weights[f"bn.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        return functional.normalize(functional.batch_norm(features, *norm)).numpy()


def ranks(probes: Sequence[Array], gallery: Sequence[Array]) -> Array:
    """How many people of the gallery look at least as similar to each probe as the person of the probe."""
    similarities = embeddings(probes) @ embeddings(gallery).T
    return np.asarray((similarities >= np.diag(similarities)[:, None]).sum(axis=1))


@pytest.mark.timeout(300)
def test_people_of_anonymized_photos_are_recognized_no_better_than_by_chance() -> None:
    photos = folder_from_environment("MIEN_PHOTOS_DIR")
    folder_from_environment(PATH_VARIABLE)
    detector = create_detector(load_settings(device="cpu"))
    gallery, mirrored, anonymized = [], [], []
    for path in sorted(photos.glob("*.jpg")):
        image = decode(path.read_bytes())
        if not (faces := detector.detect(image)):
            continue
        landmarks = faces[0].landmarks_px
        gallery.append(align(image, landmarks))
        half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        mirrored.append(align(half, landmarks / 2)[:, ::-1])
        # the recognizer is told where the face was
        anonymized.append(align(anonymize(image, [face.box for face in faces]), landmarks))
    people = len(gallery)
    assert people >= 60
    assert (ranks(mirrored, gallery) == 1).mean() > 0.95  # it does recognize people
    found = ranks(anonymized, gallery)
    assert (found == 1).sum() <= 4  # by chance, more than 4 have a probability below 1 %
    assert np.median(found) > 0.35 * people
