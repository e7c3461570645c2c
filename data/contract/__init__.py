"""Torch-free functions shared by serving and training, so that crops and labels are identical in both."""

from mien.data.contract.align import CROP_PX, LANDMARKS, Array, DegenerateLandmarks, align, fit, roll_degrees
from mien.data.contract.decode import DecodeError, EmptyImage, ImageTooLarge, UnsupportedImage, decode
from mien.data.contract.identity import contract_id
from mien.data.contract.labels import EIGHT_LABELS, LABELS, Classes, UnknownLabel, labels_of, parse_label
from mien.data.contract.probabilities import softmax

__all__ = [
    "CROP_PX",
    "EIGHT_LABELS",
    "LABELS",
    "LANDMARKS",
    "Array",
    "Classes",
    "DecodeError",
    "DegenerateLandmarks",
    "EmptyImage",
    "ImageTooLarge",
    "UnknownLabel",
    "UnsupportedImage",
    "align",
    "contract_id",
    "decode",
    "fit",
    "labels_of",
    "parse_label",
    "roll_degrees",
    "softmax",
]
