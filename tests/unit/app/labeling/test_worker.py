"""Labeling of batches by several threads with one pipeline."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mien.app.inference.detect.weights import find_yunet
from mien.app.labeling.facts import open_pipeline
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.records import Input, Result
from mien.app.labeling.worker import label_batch
from mien.app.settings import Settings
from tests.albums import write_photos


@pytest.mark.parametrize("detector", ["builtin", "yunet"])
def test_threads_that_share_a_pipeline_return_what_one_thread_returns(
    artifact: Path, tmp_path: Path, detector: str
) -> None:
    if detector == "yunet" and find_yunet(Settings().models_dir) is None:
        pytest.skip("YuNet is not installed: set MIEN_MODELS_DIR")
    photos = write_photos(tmp_path / "photos", count=12)
    batches = [
        [Input(path.name, "file", bytes(path), 1) for path in sorted(photos.iterdir())[first : first + 3]]
        for first in range(0, 12, 3)
    ]
    pipeline = open_pipeline(Settings(model=artifact, detector=detector, device="cpu"))

    def values(batch: list[Input]) -> list[tuple[object, ...]]:
        return [compared(result) for result in label_batch(pipeline, batch, LabelOptions(), tmp_path)[0]]

    expected = [values(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for batch, results in zip(batches * 8, pool.map(values, batches * 8), strict=True):
            assert results == expected[batches.index(batch)]


def compared(result: Result) -> tuple[object, ...]:
    faces = [(*face.box_px, *np.ravel(face.landmarks_px), *face.probabilities, face.label) for face in result.faces]
    assert faces
    return (result.input.name, result.sha256, *faces)
