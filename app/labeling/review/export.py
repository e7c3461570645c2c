"""Export of reviewed faces as a class-folder data set for training.

mien review out --export faces && mien data check folders faces
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from mien.app.labeling.images import crop_path, encode_png
from mien.app.labeling.review.class_folders import Crop, write_class_folders
from mien.app.labeling.review.corrections import NOT_A_FACE, applies, read_corrections
from mien.app.labeling.review.sources import source_pixels
from mien.app.labeling.view import View, open_view
from mien.data import contract
from mien.data.contract import Array


def write_export(out: Path, target: Path, *, everything: bool) -> str:
    """Write reviewed faces as class folders (all faces with `everything`, unreviewed ones by the model's label).

    Existing crops in `crops/` are used; others are cut from the sources by the same function. Returns: a message for
    the user. Raises: LabelingError.
    """
    count: Counter[bool] = Counter()
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(open_view(out, filtered=False)) as view:
        write_class_folders(target, _crops(view, everything=everything, count=count))
    return f"{count.total()} faces in {target}, {count[True]} of them reviewed. Check: mien data check folders {target}"


def _crops(view: View, *, everything: bool, count: Counter[bool]) -> Iterator[Crop]:
    corrections = read_corrections(view.out)
    for image in view.images():
        pixels: Array | None = None
        for face in image.faces:
            correction = corrections.get((image.input.name, image.input.frame, face.number))
            reviewed = correction is not None and applies(correction, image)
            label = correction.label if correction is not None and reviewed else face.label
            if label == NOT_A_FACE or not (reviewed or everything):
                continue
            source: Path | bytes = view.out / crop_path(image.input.name, image.input.frame, face.number)
            if isinstance(source, Path) and not source.exists():
                pixels = source_pixels(image) if pixels is None else pixels
                source = encode_png(contract.align(pixels, face.landmarks_px))
            count[reviewed] += 1
            yield Crop(image, face, label, reviewed, source)
