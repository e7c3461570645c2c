"""Files of a data set, in a folder or a zip, by their relative POSIX names.

Zips are not unpacked: the published ones are uncompressed, so reading them is as fast as reading a folder. A zip in a
folder or zip, such as `Image/aligned.zip`, is read as the folder `Image/aligned/`; one inside of a zip is kept in
memory.
"""

import io
import os
import re
import zipfile
from pathlib import Path
from typing import Final

from mien.data.errors import DatasetError

File = Path | zipfile.Path
_HIDDEN: Final = re.compile(r"(^|/)(\.|__MACOSX(/|$))")


def files_of(root: Path) -> dict[str, File]:
    """Files below a root by name, sorted, without hidden ones and `__MACOSX`.

    Links to folders are followed, and each real folder is read once.
    Raises: DatasetError, if the root does not exist, or for a name that is not UTF-8: the hashes of the data need it.
    """
    if not root.exists():
        raise DatasetError(f"no data at {root}: expected a folder or a zip")
    files = _zipped(root, root) if root.is_file() else _in_folder(root)
    for inner in [name for name in files if name.lower().endswith(".zip") and not _HIDDEN.search(name)]:
        file = files.pop(inner)
        archive = file if isinstance(file, Path) else io.BytesIO(read_file(file))
        unpacked = _zipped(archive, file)
        files = {f"{inner[:-4]}/{name}": entry for name, entry in unpacked.items()} | files
    for name in files:
        if (stored := name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")) != name:
            raise DatasetError(f"{root}: the name of {stored} is not UTF-8. Rename the file.")
    return {name: files[name] for name in sorted(files) if not _HIDDEN.search(name)}


def _zipped(file: Path | io.BytesIO, name: File) -> dict[str, File]:
    try:
        archive = zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as error:
        raise DatasetError(f"cannot open {name} as a zip: {error}. Copy or download it again.") from error
    return {entry.filename: zipfile.Path(archive, entry.filename) for entry in archive.infolist() if not entry.is_dir()}


def _in_folder(root: Path) -> dict[str, File]:
    files: dict[str, File] = {}
    visited: set[str] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            subfolders.clear()
            continue
        visited.add(real)
        relative = Path(folder).relative_to(root)
        files |= {(relative / name).as_posix(): Path(folder, name) for name in names}
    return files


def read_file(file: File) -> bytes:
    """Read a file, of a zip checked against its CRC. Raises: DatasetError, naming the file."""
    try:
        return file.read_bytes()
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, EOFError) as error:
        raise DatasetError(f"cannot read {file}: {error}") from error


def stamp_of(file: File) -> str:
    """Size and time of a file, or of an entry of a zip size and CRC, which change with its bytes."""
    if isinstance(file, zipfile.Path):
        entry = file.root.getinfo(file.at)
        return f"{entry.file_size} {entry.CRC}"
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
