"""Privacy: no image data in the log, in the temporary folder, or in the working directory."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np

from tests.service.conftest import Serve
from tests.support import encoded

CANARY = b"canary-7d1c9e52-in-the-image"


def _photo_with_canary() -> bytes:
    """A noisy PNG of 3 MB, larger than form parsers keep in memory, that contains a known text."""
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    return encoded(noise) + CANARY


def _files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file())


def test_a_canary_image_is_not_stored_anywhere(serve: Serve) -> None:
    """Not even for a moment: the service works with a temporary folder that is not writable."""
    server = serve(max_bytes=8_000_000)
    (server.folder / "tmp").chmod(0o500)
    before = set(_files(server.folder))
    photo = _photo_with_canary()
    answer = httpx.post(f"{server.url}/v1/expressions", files={"images": ("a.png", photo, "image/png")}, timeout=30)
    assert answer.status_code == 200
    for name, payload in ((CANARY.decode() + ".png", photo), ("broken.png", photo[:50_000] + CANARY)):
        httpx.post(f"{server.url}/v1/expressions", files={"images": (name, payload, "image/png")}, timeout=30)
        httpx.post(f"{server.url}/v1/expressions", content=payload, headers={"content-type": "image/png"}, timeout=30)
    for opened in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            assert not opened.readlink().is_relative_to(server.folder / "tmp"), "no hidden temporary file"
    assert server.stop() == 0
    assert set(_files(server.folder)) == before, "no file is left behind"
    log = server.log.read_bytes()
    assert b"/v1/expressions" in log, "the log is the right one"
    for path in _files(server.folder):
        content = path.read_bytes()
        assert CANARY not in content, path
        assert photo[1000:1032] not in content, path
