"""Names and packing of members of zip files, as archivers of several systems write them."""

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.labeling.conftest import Mien
from tests.support import encoded
from tests.support.albums import by_file, face_photo

PLACEHOLDER = b"@"
UNIX, WINDOWS = 3, 0


def write_zip(path: Path, names: list[bytes], *, system: int = WINDOWS, unicode_path: str = "") -> None:
    """A zip file of photos whose names have these bytes, and no flag that names their encoding."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            info = zipfile.ZipInfo((PLACEHOLDER + b"%d" % number).decode().ljust(len(name), "@"))
            info.create_system = system
            if unicode_path:
                value = struct.pack("<BI", 1, zlib.crc32(name)) + unicode_path.encode()
                info.extra = struct.pack("<HH", 0x5455, 1) + b"\0" + struct.pack("<HH", 0x7075, len(value)) + value
            archive.writestr(info, encoded(face_photo(variant=number), "JPEG"))
    payload = path.read_bytes()
    for number, name in enumerate(names):
        payload = payload.replace((PLACEHOLDER + b"%d" % number).ljust(len(name), b"@"), name)
    path.write_bytes(payload)


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (
            ["代.jpg".encode("cp932"), "in\\表.jpg".encode("cp932")],
            {"encoding": "cp932"},
            ["代.jpg", "in/表.jpg"],
        ),
        (["Лицо.jpg".encode(), b"in\\a.jpg"], {"encoding": "cp1251"}, ["Лицо.jpg", "in/a.jpg"]),  # UTF-8 first
        ([b"a\\b.jpg"], {"system": UNIX}, ["a\\b.jpg"]),
        (["表紙.jpg".encode("cp932")], {"unicode_path": "表紙.jpg"}, ["表紙.jpg"]),  # in the extra field
    ],
)
def test_names_are_decoded_as_utf_8_or_as_the_option_or_the_extra_field_says(
    mien: Mien, tmp_path: Path, names: list[bytes], options: dict[str, Any], expected: list[str]
) -> None:
    encoding = options.pop("encoding", None)
    write_zip(tmp_path / "a.zip", names, **options)
    rows = mien.label(tmp_path / "a.zip", "--write", "csv", *(["--zip-encoding", encoding] if encoding else []))
    assert by_file(rows, "status") == {f"a.zip/{name}": "ok" for name in expected}


def test_photos_with_names_in_an_unknown_encoding_are_labeled_and_renamed_by_the_option(
    mien: Mien, tmp_path: Path
) -> None:
    write_zip(tmp_path / "a.zip", ["代表.jpg".encode("cp932"), "表紙.jpg".encode("cp932")])
    assert [row["status"] for row in mien.label(tmp_path / "a.zip")] == ["ok", "ok"]
    rows = mien.label(tmp_path / "a.zip", "--zip-encoding", "shift-jis")
    assert [row["file"] for row in rows] == ["a.zip/代表.jpg", "a.zip/表紙.jpg"]
    said = mien.run(tmp_path / "a.zip", "--zip-encoding", "none")
    assert said.exit_code == 2


def test_members_in_a_packing_that_is_not_read_are_unsupported(mien: Mien, folder: Path) -> None:
    for method in (9, 93, 98):  # Deflate64, Zstandard and PPMd
        path = folder / f"{method}.zip"
        write_zip(path, [b"0.jpg", b"1.jpg"])
        payload = bytearray(path.read_bytes())
        payload[8:10] = struct.pack("<H", method)
        central = payload.index(b"PK\x01\x02")
        payload[central + 10 : central + 12] = struct.pack("<H", method)
        path.write_bytes(payload)
    rows = mien.label(folder, exit_code=3)
    assert [(row["reason"], row["status"]) for row in rows] == [("unsupported", "error"), ("", "ok")] * 3
    assert all("repack" in row["error"] for row in rows[::2])
