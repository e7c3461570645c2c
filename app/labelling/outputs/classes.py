"""`classes/train/<label>/`: copies of the face crops by label, ready for training as class folders."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from app.labelling.class_folders import write_class_folders
from app.labelling.files import parts_dir
from app.labelling.products import CROPS, crop_path, flat_crop_name
from app.labelling.view import View

HELP: Final = "classes/: face crops by label, copied; a class-folder data set"
PRODUCTS: Final = CROPS


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write `classes/` with copies."""
    write_class_folders(parts_dir(out), out / "classes", labelled_crops(view, out), link=False)
    return [out / "classes"]


def labelled_crops(view: View, out: Path) -> Iterator[tuple[str, str, Path]]:
    """Label, file name and crop of every face."""
    for picture in view.pictures():
        for number, face in enumerate(picture.faces):
            name = flat_crop_name(picture.name, picture.frame, number)
            yield face.label, name, crop_path(out, picture.name, picture.frame, number)
