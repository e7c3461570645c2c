"""ExpW, Expression in the Wild: 91,793 faces in web photos, one label each (Zhang et al. 2018).

Layout: `label/label.lst`, one line per face (image, face number, box top, left, right, bottom, detector's confidence,
expression from 0 to 6), and the photos in `image/origin/`. Faces are cut out by their boxes.

    mien data check expw path/to/expw --option min_confidence=60

The set has no splits. One tenth of the photos is `valid` and one tenth is `test`, selected by the SHA-256 of the name
of the photo, so that faces of the same photo stay together.
"""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import cv2
import numpy as np

from mien.data.contract import LABELS, Array
from mien.data.readers.base import Reader, Sample
from mien.data.split import hold_out

EXPRESSIONS: Final = ("anger", "disgust", "fear", "happiness", "sadness", "surprise", "neutral")
_LIST: Final = "label.lst"
_SHARE: Final = 0.1
_FIELDS: Final = 8
_MARGIN: Final = 0.1  # share of the side, added on each side: the boxes end at the brows


class ExpW(Reader):
    """Reader of ExpW.

    Options:
        min_confidence: leave out faces with a lower detection confidence, 0 to 100.
    """

    kind: ClassVar[str] = "expw"
    title: ClassVar[str] = "ExpW"
    where_to_get: ClassVar[str] = (
        "mmlab.ie.cuhk.edu.hk/projects/socialrelation, Expression in-the-Wild; unpack the image archives to "
        "image/origin/ next to label/label.lst"
    )
    terms: ClassVar[str] = (
        "for non-commercial research; the images are from the web, and their owners keep the copyright"
    )
    limits: ClassVar[str] = (
        "ExpW faces are from web photos found by emotion keywords, each labeled by one person; fear is rare."
    )

    def __init__(self, root: Path | str, *, min_confidence: float = 0.0) -> None:
        super().__init__(root)
        self.min_confidence = min_confidence
        self._path_by_name = {name.rsplit("/", 1)[-1]: name for name in self.tree.names}
        name = self.folder_of(_LIST) + _LIST
        text = self.tree.read_text(name)
        rows = [self._row(line, f"{name} line {number}") for number, line in enumerate(text.splitlines(), 1) if line]
        photos = {photo: "" for photo, _, _ in rows}  # a photo can have faces of several classes
        test = hold_out(photos, _SHARE)
        valid = hold_out({photo: "" for photo in photos if photo not in test}, _SHARE / (1 - _SHARE))
        for photo, confidence, sample in rows:
            split = "test" if photo in test else "valid" if photo in valid else "train"
            if confidence < self.min_confidence:
                self._left_out[split]["below min_confidence"] += 1
            else:
                self._by_split[split].append(replace(sample, split=split))

    def path_of(self, sample: Sample) -> str:
        name = sample.key.rpartition("#")[0]
        return self._path_by_name.get(name, name)

    def image(self, sample: Sample) -> Array:
        """Return the square around a face's box with a margin, (S, S, 3) uint8, RGB; the edge of the photo is repeated.

        Raises: DatasetError, DecodeError.
        """
        photo = super().image(sample)
        x, y, width, height = sample.box_px or (0.0, 0.0, float(photo.shape[1]), float(photo.shape[0]))
        side = round(max(width, height) * (1 + 2 * _MARGIN))
        left, top = round(x + width / 2 - side / 2), round(y + height / 2 - side / 2)
        pad = max(0, -left, -top, left + side - photo.shape[1], top + side - photo.shape[0])
        padded = cv2.copyMakeBorder(photo, pad, pad, pad, pad, cv2.BORDER_REPLICATE)
        return np.ascontiguousarray(padded[top + pad : top + pad + side, left + pad : left + pad + side])

    def _row(self, line: str, where: str) -> tuple[str, float, Sample]:
        """Photo, confidence and sample of one line. Raises: DatasetError, naming it."""
        words = line.split()
        try:
            if len(words) != _FIELDS:
                raise ValueError(f"{len(words)} fields")
            number, top, left, right, bottom = (int(word) for word in words[1:6])
            confidence, expression = float(words[6]), int(words[7])
            if expression < 0:
                raise ValueError(f"label {expression}")
            label = EXPRESSIONS[expression]
            if right <= left or bottom <= top:
                raise ValueError(f"box from {left},{top} to {right},{bottom}")
        except (ValueError, IndexError) as error:
            raise self.error(
                f"{where}: {error}; expected image, face number, top, left, right, bottom, confidence, label 0 to "
                f"{len(LABELS) - 1}, got {line!r}"
            ) from error
        box = (float(left), float(top), float(right - left), float(bottom - top))
        return words[0], confidence, Sample(f"{words[0]}#{number}", "train", label, box_px=box)
