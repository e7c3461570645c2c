"""`classes/train/<label>/`: copies of the face crops by label, ready for training as class folders."""

from typing import Final

from mien.app.labeling.images import CROPS, crop_path
from mien.app.labeling.review.class_folders import Crop, write_class_folders
from mien.app.labeling.view import View

HELP: Final = "classes/: face crops by label, for training"
IMAGES: Final = CROPS
TARGETS: Final = ("classes",)


def render(view: View, *, link: bool = False) -> None:
    """Write `classes/` with copies of the crops or links to them, as far as `--limit` went. Raises: ForeignFile."""
    crops = (
        Crop(image, face, face.label, False, path)
        for image in view.images()
        for face in image.faces
        if (path := view.out / crop_path(image.input.name, image.input.frame, face.number)).exists()
    )
    write_class_folders(view.out / TARGETS[0], crops, link=link, spreadsheet_safe=view.spreadsheet_safe)
