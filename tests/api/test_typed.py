"""Types of the Python API in a program outside of the repository, checked by mypy."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

_RIGHT = """
from pathlib import Path
from typing import Any, assert_type
from zipfile import ZipFile

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from mien import LABELS, Analyzer, BatchError, Box, Client, Face, Faces, Image, MienError, __version__


def label(photos: list[Image]) -> list[str]:
    analyzer = Analyzer(model=Path("models/mine"), device="cpu", min_face_px=24)
    faces = analyzer.analyze(Path("photo.jpg"))
    assert_type(faces, Faces)
    assert_type(faces[:2], Faces)
    assert_type(faces.draw(), PIL.Image.Image)
    assert_type(faces.to_dict(), dict[str, Any])
    analyzer.analyze("photo.jpg", boxes=[(1, 2, 30, 40), Box(1, 2, 30, 40), np.zeros((5, 2))])
    for face in faces:
        assert_type(face, Face)
        assert_type(face.box, Box)
        assert_type(face.landmarks, dict[str, tuple[float, float]])
        assert_type(face.probabilities[LABELS[0]], float)
        assert_type(face.reasons, tuple[str, ...])
        assert_type(face.crop, NDArray[np.uint8])
        assert_type(face.to_dict(), dict[str, Any])
    with ZipFile("photos.zip") as archive, archive.open("photo.jpg") as member:
        analyzer.analyze(member)
    for image in (b"", bytearray(), memoryview(b""), np.zeros((8, 8, 3), np.uint8), PIL.Image.new("L", (8, 8))):
        analyzer.analyze(image)
    assert_type(analyzer.analyze_batch(photos), list[Faces])
    assert_type(Client(api_key="k").analyze(Path("photo.jpg"), min_face_px=24, crops=True), Faces)
    try:
        return [face.label for faces in analyzer.analyze_batch(photos) for face in faces]
    except BatchError as error:
        return [face.label for faces in error.results if faces is not None for face in faces]
    except MienError as error:
        return [str(error), __version__]
"""
_WRONG = """
from mien import Analyser
from mien import Analyzer

Analyzer(device="gpu")
Analyzer().analyze(1.5)
Analyzer().analyze("photo.jpg")[0].emotion
"""


def test_a_users_program_passes_mypy_strict_and_mistakes_are_found(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(_RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(_WRONG, encoding="utf-8")
    cache = ROOT / ".mypy_cache" / "program"  # kept: NumPy and Pillow take most of the time
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    errors = re.findall(r"^(\S+): error: .*\[([\w-]+)\]$", result.stdout, re.MULTILINE)
    kinds = {2: "attr-defined", 5: "arg-type", 6: "arg-type", 7: "attr-defined"}
    assert errors == [(f"wrong.py:{line}", kind) for line, kind in kinds.items()], result.stdout
