"""Shared test helpers: a tiny artifact with real graphs, drawn images, and folders of real data."""

import io
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnx.parser
import pytest
from PIL import Image

from mien.app.inference.detector import Detection
from mien.app.inference.records import Box, Face, Landmarks
from mien.data.contract import CROP_PX, LABELS, Array, contract_id
from mien.models.manifest import GraphFile, Manifest, sha256_of, write_manifest

_FEATURES = 3 * 7 * 7
ROOT = Path(__file__).resolve().parents[2]


def eventually(met: Callable[[], object], *, failure: Callable[[], object] = str, timeout_s: float = 60) -> None:
    """Wait until a condition is met; else fails with the result of `failure`."""
    end = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < end, failure()
        time.sleep(0.1)


def is_listening(port: int) -> bool:
    """Whether a program of this machine accepts connections at this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment_of(**settings: object) -> dict[str, str]:
    """Variables of this process with these settings of Mien and no others, for a process of a test in any folder."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
    others.setdefault("PYTHONPATH", str(ROOT))
    return others | {f"MIEN_{name.upper()}": str(value) for name, value in settings.items() if value is not None}


def output_of(*command: str | Path, **options: Any) -> str:
    """Standard output of a program; fails with all that it wrote if its exit status is not zero."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def code_blocks(document: str, mark: str) -> list[tuple[str, str]]:
    """Language and text of the fenced code blocks of a document with a mark, as in "```sh test"."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```(\w+) {mark}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


_GRAPH = """<ir_version: 9, opset_import: ["": 17]>
tiny (uint8[N, 112, 112, 3] crops) => (float[N, 7] logits, float[N, 7, 7] relevance) {
    numbers = Cast <to = KIND> (crops)
    unit = Mul (numbers, scale)
    planes = Transpose <perm = [0, 3, 1, 2]> (unit)
    tiles = AveragePool <kernel_shape = [16, 16], strides = [16, 16]> (planes)
    features = Flatten (tiles)
    products = MatMul (features, weight)
    logits = Cast <to = 1> (products)
    tiles32 = Cast <to = 1> (tiles)
    brightness = ReduceMean <axes = [1], keepdims = 0> (tiles32)
    whole = ReduceSum <keepdims = 1> (brightness, grid)
    relevance = Div (brightness, whole)
}"""


def tiny_graph(*, half: bool = False) -> onnx.ModelProto:
    """A graph with the released signature: mean color of a 7x7 grid of tiles, one linear layer, seven logits; and as
    `relevance` the brightness of each tile, as a share of the crop's.
    """
    kind, dtype = (onnx.TensorProto.FLOAT16, np.float16) if half else (onnx.TensorProto.FLOAT, np.float32)
    model = onnx.parser.parse_model(_GRAPH.replace("KIND", str(kind)))
    constants: dict[str, Array] = {
        "scale": np.array(1 / 255, dtype),
        "weight": (np.random.default_rng(0).normal(size=(_FEATURES, len(LABELS))) / 2).astype(dtype),
        "grid": np.array([1, 2], np.int64),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    onnx.checker.check_model(model)
    return model


def tiny_artifact(folder: Path, *, precisions: tuple[str, ...] = ("fp32", "fp16"), **changes: object) -> Path:
    """Write a small but valid artifact into `folder`; `changes` replace fields of its manifest. Returns `folder`.

    Precisions other than fp16 use the fp32 graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graphs = {}
    for precision in precisions:
        path = folder / f"model.{precision}.onnx"
        path.write_bytes(tiny_graph(half=precision == "fp16").SerializeToString())
        graphs[precision] = GraphFile(file=path.name, sha256=sha256_of(path))
    (folder / "card.md").write_text("# Tiny\n\nA test's artifact; its labels mean nothing.\n", encoding="utf-8")
    fields: dict[str, object] = {
        "name": folder.name,
        "labels": LABELS,
        "contract_id": contract_id(),
        "explain": (7, 7),
        "graphs": graphs,
        "parameters": _FEATURES * len(LABELS) + len(LABELS),
        "temperature": 1.5,
        "prior_correction": (-0.4, 0.5, 0.9, -0.6, 0.1, 0.2, -0.7),  # changes labels
        "confidence_threshold": 0.3,
        "commit": "0" * 40,
        "license": "Apache-2.0",
        "files": {"card.md": sha256_of(folder / "card.md")},
    }
    write_manifest(folder, Manifest.model_validate(fields | changes))
    return folder


def upright_face(x: float, y: float, side: float = 80.0) -> Detection:
    """A detected face with its center at (x, y)."""
    points = np.array([(-0.2, -0.15), (0.2, -0.15), (0.0, 0.025), (-0.15, 0.225), (0.15, 0.225)], np.float32)
    return Detection(Box(x - side / 2, y - side / 2, side, side), points * side + (x, y), 0.9)


def labeled_face(
    box: tuple[float, float, float, float] = (100, 100, 80, 80), *, uncertain: bool = False, **shares: float
) -> Face:
    """A face with these probabilities by label; the rest is spread evenly."""
    rest = (1 - sum(shares.values())) / (len(LABELS) - len(shares))
    return face_of({label: shares.get(label, rest) for label in LABELS}, box=box, uncertain=uncertain)


def face_of(probabilities: dict[str, float], **fields: Any) -> Face:
    """A face with these probabilities, labeled with the most probable one; `fields` replace others."""
    label = max(probabilities, key=lambda name: probabilities[name])
    defaults: dict[str, Any] = {
        "landmarks": Landmarks.of(np.zeros((5, 2))),
        "detection_score": 0.9,
        "label": label,
        "confidence": probabilities[label],
        "uncertain": False,
        "reasons": (),
        "roll_degrees": 0.0,
    }
    box = Box(*fields.pop("box", (100, 100, 80, 80)))
    return Face(box=box, probabilities=probabilities, **defaults | fields)


def random_crops(count: int) -> Array:
    """(count, 112, 112, 3) uint8: different crops of smooth random colors."""
    coarse = np.random.default_rng(0).integers(0, 256, (count, 7, 7, 3), dtype=np.uint8)
    return np.stack([cv2.resize(tiles, (CROP_PX, CROP_PX), interpolation=cv2.INTER_LINEAR) for tiles in coarse])


def gradient_image(width: int = 320, height: int = 240) -> Array:
    """A drawn image without a face: a gradient with a dark rectangle, (height, width, 3) uint8 RGB."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    image = np.stack([x, y, 255 - x], axis=2).astype(np.uint8)
    cv2.rectangle(image, (width // 4, height // 4), (width // 2, height // 2), (20, 30, 40), -1)
    return image


def encoded(image: Array | Image.Image, kind: str = "PNG", *, orientation: int | None = None, **options: Any) -> bytes:
    """Encode (H, W, 3) uint8 RGB or an image of Pillow as a file's bytes, optionally with an EXIF orientation."""
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def sample_photo() -> Path:
    """The sample photo with one face: astronaut Eileen Collins, NASA, public domain."""
    return ROOT / "samples" / "photos" / "astronaut.jpg"


def folder_from_environment(variable: str) -> Path:
    """Folder in an environment variable; skips the test if it is not set."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: this test needs the real files")
    return Path(value).resolve()
