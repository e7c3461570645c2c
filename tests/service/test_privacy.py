"""Privacy: no image data in the log, in the temporary folder, or in the working directory."""

from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np

from tests.support import encoded
from tests.support.serving import Server

CANARY = b"canary-7d1c9e52-in-the-image"


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_canary_image_is_not_stored_anywhere(common: Server) -> None:
    """Not even for a moment: the service works with a temporary folder that is not writable."""
    (common.folder / "tmp").chmod(0o500)
    before = files(common.folder)
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    photo = encoded(noise) + CANARY  # 3 MB, more than form parsers keep in memory
    for name, payload, status in ((f"{CANARY.decode()}.png", photo, 200), ("broken.png", photo[:50_000] + CANARY, 422)):
        form = {"images": (name, payload, "image/png")}
        response = httpx.post(f"{common.url}/v1/expressions", files=form, timeout=30)
        assert response.status_code == common.post(payload).status_code == status
    for opened in Path(f"/proc/{common.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            assert not opened.readlink().is_relative_to(common.folder / "tmp"), "no hidden temporary file"
    assert files(common.folder) == before, "no file is left behind"
    assert b"/v1/expressions" in common.log.read_bytes(), "the log is the right one"
    for path in before:
        assert CANARY not in path.read_bytes(), path
        assert photo[1000:1032] not in path.read_bytes(), path
