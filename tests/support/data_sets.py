"""Small data sets in the original layouts, with drawn faces.

`make_<kind>(root)` writes the layout that the reader of that kind expects; tests find it by its name.

The drawn expressions differ in mouth, brows and eyes, so that a model can learn them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np

from mien.data.atomic import write_atomic
from mien.data.contract import LABELS, LANDMARKS, TEMPLATE_PX, Array

# mouth curve (up is positive), mouth opening, brow tilt (inner ends up is positive), eye opening
_EXPRESSIONS = {
    "surprise": (0.0, 1.0, 0.2, 1.0),
    "fear": (-0.3, 0.6, 0.8, 1.0),
    "disgust": (-0.6, 0.2, -0.5, 0.3),
    "happiness": (1.0, 0.4, 0.0, 0.5),
    "sadness": (-1.0, 0.0, 0.9, 0.4),
    "anger": (-0.4, 0.1, -1.0, 0.7),
    "neutral": (0.0, 0.0, 0.0, 0.6),
}
# The numbers and columns of the published sets, not those of the readers.
_NUMBERS = {"surprise": 1, "fear": 2, "disgust": 3, "happiness": 4, "sadness": 5, "anger": 6, "neutral": 7}  # RAF-DB
AFFECTNET = ("neutral", "happiness", "sadness", "surprise", "fear", "disgust", "anger", "contempt")
COLUMNS = ("neutral", "happiness", "surprise", "sadness", "anger", "disgust", "fear", "contempt", "unknown", "NF")
_PERSONS_VIEW = ("right_eye", "left_eye", "nose", "right_mouth", "left_mouth")  # muxspace's names of the landmarks
SIX_PER_CLASS = dict.fromkeys(LABELS, 6)


@lru_cache(maxsize=512)
def draw_face(label: str, seed: int, *, size_px: int = 112, gray: bool = False) -> tuple[Array, Array]:
    """Draw one face; each seed gives a different one. Many tests draw the same ones, which are kept.

    Returns: (size, size, 3) uint8 RGB, and its landmarks in pixels, (5, 2) float32, in the order of the contract.
    """
    random = np.random.default_rng([seed, LABELS.index(label)])
    curve, opening, tilt, eyes = _EXPRESSIONS[label]
    landmarks = np.rint(np.asarray(TEMPLATE_PX) + random.normal(0, 1.0, (5, 2))).astype(int)
    skin = random.integers(90, 230, 3)
    image = np.full((112, 112, 3), random.integers(0, 256, 3), np.uint8)
    cv2.ellipse(image, (56, 60), (44, 54), 0, 0, 360, skin.tolist(), -1)
    for side, (x, y) in zip((-1, 1), landmarks[:2], strict=True):
        cv2.ellipse(image, (x, y), (7, round(2 + 5 * eyes)), 0, 0, 360, (245, 245, 245), -1)
        cv2.circle(image, (x, y), 3, (30, 30, 40), -1)
        inner, outer = (x - side * 9, y - round(11 + 5 * tilt)), (x + side * 9, y - round(11 - 3 * tilt))
        cv2.line(image, inner, outer, (60, 10, 20), 4)
    left, right = landmarks[3:]
    middle, open_px = (left + right) // 2 + (0, round(9 * curve)), (0, round(8 * opening))
    lips = [np.array([left, middle - open_px, right, middle + open_px])]
    cv2.fillPoly(image, lips, (60, 10, 20))
    cv2.polylines(image, lips, True, (60, 10, 20), 4)
    image = np.clip(image + random.normal(0, 4, image.shape), 0, 255).astype(np.uint8)
    if gray:
        image = np.repeat(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2)
    image = cv2.resize(image, (size_px, size_px), interpolation=cv2.INTER_AREA)
    image.flags.writeable = False
    return image, (landmarks * (size_px / 112)).astype(np.float32)


def write_image(path: Path, image: Array) -> None:
    """Write (H, W, 3) uint8 RGB in the format of the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, image[:, :, ::-1])[1].tobytes())


def make_all_different(root: Path) -> None:
    """Replace all images below `root` by different noise, because drawn faces resemble each other."""
    images = (path for path in root.rglob("*") if path.suffix in (".png", ".jpg"))
    for seed, path in enumerate(sorted(images)):
        coarse = np.random.default_rng(seed).integers(0, 256, (12, 12), dtype=np.uint8)
        write_image(path, cv2.cvtColor(cv2.resize(coarse, (48, 48)), cv2.COLOR_GRAY2RGB))


def _in_photo(label: str, seed: int, size_px: int, left: int, top: int) -> tuple[Array, Array]:
    """A face of any label in a photo that repeats its edge, and its landmarks there, (5, 2)."""
    face, points = draw_face(label if label in LABELS else "neutral", seed, size_px=size_px)
    photo = cv2.copyMakeBorder(face, top, 30, left, 50, cv2.BORDER_REPLICATE)
    return photo, points + np.array([left, top])


def _columns(names: Sequence[str] = LANDMARKS) -> list[str]:
    return [f"{name}_{axis}" for name in names for axis in "xy"]


def make_raf_db(
    root: Path,
    train: Mapping[str, int] = SIX_PER_CLASS,
    test: Mapping[str, int] = SIX_PER_CLASS,
    *,
    originals: bool = True,
    kaggle: bool = False,
) -> Path:
    """Write RAF-DB's label file, aligned and original images, and annotations, or Kaggle's folders. Returns `root`."""
    lines = ""
    for part, digits, counts, offset in (("train", 5, train, 0), ("test", 4, test, 100_000)):
        labels = [label for label in LABELS for _ in range(counts.get(label, 0))]
        for number, label in enumerate(labels, start=1):
            name, seed = f"{part}_{number:0{digits}}", offset + number
            folder = f"DATASET/{part}/{_NUMBERS[label]}" if kaggle else "Image/aligned"
            write_image(root / folder / f"{name}_aligned.jpg", draw_face(label, seed, size_px=100)[0])
            if kaggle:
                continue
            lines += f"{name}.jpg {_NUMBERS[label]}\n"
            photo, landmarks = _in_photo(label, seed, 100, 90, 50)
            if originals:
                write_image(root / "Image" / "original" / f"{name}.jpg", photo)
            points = "".join(f"{x:.3f}\t{y:.3f}\n" for x, y in landmarks)
            write_atomic(root / "Annotation/manual" / f"{name}_manu_attri.txt", f"{points}0\n1\n2\n", durable=False)
    if lines:
        write_atomic(root / "EmoLabel" / "list_patition_label.txt", lines)
    return root


def make_ferplus(root: Path) -> Path:
    """Write FERPlus' layout: two training images and one of validation per label, with ten votes. Returns `root`."""
    for folder, count in (("FER2013Train", 2), ("FER2013Valid", 1)):
        lines: list[tuple[object, ...]] = []
        for seed, label in enumerate(LABELS * count, start=100 * count):
            votes = ({label: 8, "unknown": 2}.get(name, 0) for name in COLUMNS)
            lines.append((f"fer{seed:07}.png", '"(0, 0, 48, 48)"', *votes))
            write_image(root / folder / f"fer{seed:07}.png", draw_face(label, seed, size_px=48, gray=True)[0])
        write_csv(root / folder / "label.csv", lines)
    return root


def make_folders(root: Path, splits: Mapping[str, Mapping[str, int]] | None = None) -> Path:
    """Write class folders; an empty split name puts the class folders at the root. Returns `root`."""
    for split, counts in (splits or {"train": dict.fromkeys(LABELS, 2), "test": dict.fromkeys(LABELS, 1)}).items():
        for number, (name, count) in enumerate(counts.items()):
            for index in range(count):
                # each split has its own pixels, and so has an eighth class
                seed = 1000 * len(split) + 250 * (split == "valid") + index + 500 * (number // len(LABELS))
                face, _ = draw_face(LABELS[number % len(LABELS)], seed)
                write_image(root / split / name / f"{split}{index:03}.png", face)
    return root


def make_muxspace(root: Path, splits: Mapping[str, Mapping[str, int]] | None = None) -> Path:
    """Write muxspace's layout: crops with an off-center face of 80 px, whose edge is repeated. Returns `root`."""
    rows: list[tuple[object, ...]] = [("file", "emotion", "source", "split", *_columns(_PERSONS_VIEW))]
    for split, counts in (splits or {"train": dict.fromkeys(LABELS, 2), "valid": dict.fromkeys(LABELS, 1)}).items():
        for label, count in counts.items():
            for index in range(count):
                crop, landmarks = _in_photo(label, len(rows), 80, 40, 30)
                source = f"{label.title()}_Person_{index:04}"
                write_image(root / split / f"{source}.webp", crop)
                rows.append((f"{split}/{source}.webp", label, f"{source}.jpg", split, *landmarks.ravel()))
    write_csv(root / "labels.csv", rows)
    return root


def make_affectnet(root: Path) -> Path:
    """Write AffectNet's layout, with contempt and unlabeled images. Returns `root`."""
    marks = np.zeros((68, 2))  # of dlib's markup
    for part, count in (("training", 20), ("validation", 2)):
        rows: list[tuple[object, ...]] = [("subDirectory_filePath", "facial_landmarks", "expression")]
        for number, label in enumerate(AFFECTNET):
            for index in range(count):
                photo, landmarks = _in_photo(label, 100 * number + index, 100, 30, 20)
                name = f"{part[:5]}{number}{index:03}.jpg"
                write_image(root / "Manually_Annotated_Images/1" / name, photo)
                parts = (36, 42), (42, 48), (30, 31), (48, 49), (54, 55)  # an eye has six points around its center
                for (start, end), point in zip(parts, landmarks, strict=True):
                    marks[start:end] = point + 8 * (np.arange(start, end) - (start + end - 1) / 2)[:, None]
                rows.append((f"1/{name}", ";".join(map(str, marks.ravel())), number))
        rows += [(f"1/{part}_{index}.jpg", rows[1][1], number) for index, number in enumerate((8, 9, 9, 10, 10, 10))]
        write_csv(root / f"{part}.csv", rows)
    return root


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write rows without quotes, comma-separated."""
    write_atomic(path, "".join(",".join(map(str, row)) + "\n" for row in rows), durable=False)


def make_photos(root: Path) -> Path:
    """Write four photos with one face each and the table that `mien label` writes. Returns `root`."""
    rows: list[tuple[object, ...]] = [("file", "face", "x", "y", "width", "height", "detection_score", *_columns())]
    for number in range(4):
        photo, landmarks = _in_photo("neutral", number, 80, 40, 20)
        write_image(root / f"{number:03}.png", photo)
        rows.append((f"{number:03}.png", 0, 40, 20, 80, 90, 0.95, *landmarks.round(1).ravel()))
    write_csv(root / "labels.csv", rows)
    return root


def make_expressions(root: Path) -> Path:
    """Write seven web photos and two press photos of two faces each, of which one is labeled. Returns `root`."""
    faces: list[tuple[object, ...]] = [("file", "face", "x", "y", "width", "height", *_columns())]
    web: list[tuple[object, ...]] = [("file", "face_x", "face_y", "label", "second", "certainty", "source")]
    press: list[tuple[object, ...]] = [("set", "file", "face_x", "face_y", "label", "second", "certainty")]
    for number in range(9):
        label, other = LABELS[number % 7], LABELS[(number + 1) % 7]
        name = f"{number:03}.png"
        file = f"photos/{name}" if number < 7 else f"people/faces/{name}"
        halves = [_in_photo(shown, number, 80, 20, 20) for shown in (other, label)]
        write_image(root / file, np.hstack([photo for photo, _ in halves]))
        for place, (photo, landmarks) in enumerate(halves):
            left = place * photo.shape[1]
            faces.append((file, place, 20 + left, 20, 80, 80, *(landmarks + np.array([left, 0])).round(1).ravel()))
        if number < 7:
            web.append((name, 210, 63, label, "", "certain", f"source/{number // 2}"))
        else:
            press.append(("people", f"faces/{name}", 210, 63, label, other, "arguable"))
    for table, rows in (("faces.csv", faces), ("labels.csv", web), ("press_labels.csv", press)):
        write_csv(root / table, rows)
    return root
