"""The loop of `benchmarks.neighbors` for fer, run by the interpreter of fer's own environment.

FER/bin/python benchmarks/neighbors_fer.py FOLDER [PREDICTIONS]

The faces of each photo are written to PREDICTIONS as JSON lines, see `benchmarks.photos`.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

LABELS: Final = {  # names of fer, and ours
    "surprise": "surprise",
    "fear": "fear",
    "disgust": "disgust",
    "happy": "happiness",
    "sad": "sadness",
    "angry": "anger",
    "neutral": "neutral",
}


def write_predictions(file: Path, paths: list[Path], faces_per_photo: list[list[Any]]) -> None:
    """Write one JSON line per face."""
    lines = []
    for path, faces in zip(paths, faces_per_photo, strict=True):
        for face in faces:
            probabilities = {LABELS[name]: float(value) for name, value in face["emotions"].items()}
            lines.append(
                {"file": path.name, "box": [int(side) for side in face["box"]], "probabilities": probabilities}
            )
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


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
    if len(sys.argv) > 2:
        write_predictions(Path(sys.argv[2]), paths, faces_per_photo)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
