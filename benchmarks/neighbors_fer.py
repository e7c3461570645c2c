"""The loop of `benchmarks.neighbors` for fer, run by the interpreter of fer's own environment.

FER/bin/python benchmarks/neighbors_fer.py FOLDER
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Label every JPEG of a folder with fer's defaults: Haar cascades and its Keras model."""
    import cv2
    from fer.fer import FER  # type: ignore[import-not-found]  # in an environment of its own

    paths = sorted(Path(sys.argv[1]).glob("*.jpg"))
    program = FER()
    for path in paths[:8]:
        program.detect_emotions(cv2.imread(str(path)))
    began = time.perf_counter()
    faces_per_photo: list[list[Any]] = [program.detect_emotions(cv2.imread(str(path))) for path in paths]
    result = {
        "program": f"fer {importlib.metadata.version('fer')}, Haar",
        "photos_with_face": sum(bool(faces) for faces in faces_per_photo),
        "faces": sum(map(len, faces_per_photo)),
        "images_per_s": len(paths) / (time.perf_counter() - began),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
