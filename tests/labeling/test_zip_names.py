"""Names of members of zip files, as archivers of several systems write them."""

import zipfile
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien
from tests.support import encoded
from tests.support.albums import by_file, face_photo

UNIX, WINDOWS = 3, 0


def write_zip(path: Path, names: list[bytes], system: int) -> None:
    """A zip file of photos whose names have these bytes, and no flag that names their encoding."""
    placeholders = [f"@{number}".ljust(len(name), "@") for number, name in enumerate(names)]
    with zipfile.ZipFile(path, "w") as archive:
        for number, placeholder in enumerate(placeholders):
            info = zipfile.ZipInfo(placeholder)
            info.create_system = system
            archive.writestr(info, encoded(face_photo(variant=number), "JPEG"))
    payload = path.read_bytes()
    for placeholder, name in zip(placeholders, names, strict=True):
        payload = payload.replace(placeholder.encode(), name)
    path.write_bytes(payload)


@pytest.mark.parametrize(
    ("names", "system", "encoding", "expected"),
    [
        (["代.jpg".encode("cp932"), "in\\表.jpg".encode("cp932")], WINDOWS, "cp932", ["代.jpg", "in/表.jpg"]),
        (["Лицо.jpg".encode(), b"in\\a.jpg"], WINDOWS, "cp1251", ["Лицо.jpg", "in/a.jpg"]),  # UTF-8 first
        ([b"a\\b.jpg"], UNIX, "cp932", ["a\\b.jpg"]),
    ],
)
def test_names_are_decoded_as_utf_8_or_as_the_option_says(
    mien: Mien, tmp_path: Path, names: list[bytes], system: int, encoding: str, expected: list[str]
) -> None:
    write_zip(tmp_path / "a.zip", names, system)
    assert {row["status"] for row in mien.label(tmp_path / "a.zip", "--write", "csv")} == {"ok"}
    rows = mien.label(tmp_path / "a.zip", "--write", "csv", "--zip-encoding", encoding)
    assert by_file(rows, "status") == {f"a.zip/{name}": "ok" for name in expected}
