"""`mien data check` recognizes whole photos in class folders, which would be squeezed into crops."""

import re
import shutil
from pathlib import Path

import cv2
import pytest

from mien.app.cli.data import main
from mien.data.contract import decode
from tests.data_sets import write_image
from tests.support import sample_photo

FACE = (slice(70, 170), slice(170, 270))  # of the sample


@pytest.mark.parametrize("whole", [True, False])
def test_whole_photos_in_class_folders_are_a_problem_and_crops_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: bool
) -> None:
    photo = decode(sample_photo().read_bytes())
    for number, name in enumerate(("happy", "sad", "fear", "anger", "disgust", "neutral", "surprise")):
        (tmp_path / name).mkdir()
        if whole:
            shutil.copy(sample_photo(), tmp_path / name / "a.jpg")
        else:
            write_image(tmp_path / name / "a.png", cv2.convertScaleAbs(photo[FACE], alpha=1, beta=number))
    with pytest.raises(SystemExit):
        main(["check", "folders", str(tmp_path)])
    output = capsys.readouterr().out
    assert bool(re.search(r"7 of 7 images examined have no face of at least 45%", output)) == whole
    assert ("no problems" in output) != whole
