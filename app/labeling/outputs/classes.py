"""`classes/train/<label>/`: copies of the face crops by label, ready for training as class folders."""

from collections.abc import Iterator
from typing import Final

from mien.app.labeling.files import parts_dir
from mien.app.labeling.journal import View
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.products import CROPS, crop_path, flat_crop_name
from mien.app.labeling.review.class_folders import Crop, write_class_folders

HELP: Final = "classes/: face crops by label, for training"
PRODUCTS: Final = CROPS
TARGETS: Final = ("classes",)


def render(view: View, folder: OutputFolder) -> None:
    """Write `classes/` with copies."""
    write_labeled_crops(view, folder, link=False)


def write_labeled_crops(view: View, folder: OutputFolder, *, link: bool) -> None:
    """Write `classes/` with copies of the crops or links to them. Raises: ForeignFile."""
    (target,) = TARGETS
    with folder.tree(target, lambda: (f"{target}/{crop.path}" for crop in _labeled_crops(view))):
        write_class_folders(parts_dir(folder.path), folder.path / target, _labeled_crops(view), link=link)


def _labeled_crops(view: View) -> Iterator[Crop]:
    for image in view.images():
        for face in image.faces:
            name = flat_crop_name(image.name, image.frame, face.number)
            yield Crop(face.label, name, view.out / crop_path(image.name, image.frame, face.number))
