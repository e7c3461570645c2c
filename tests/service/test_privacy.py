"""Privacy: no image data in the log, in the temporary folder, or in the working directory, and no query strings."""

from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np

from tests.support import encoded
from tests.support.serving import UPGRADE, Server

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


def test_query_strings_and_refused_streams_leave_no_trace_but_their_path(common: Server) -> None:
    common.get("/nope?key=secret")
    for path, origin in ((b"/v1/stream?key=secret", b"http://localhost"), (b"/v1/stream", b"http://[::1")):
        response = common.send(UPGRADE.replace(b"/v1/stream", path) + b"Origin: %s\r\n\r\n" % origin)
        assert b"application/problem+json" in response
    log = common.log.read_text()
    assert '"GET /nope" 404' in log
    assert '"WebSocket /v1/stream" 422' in log
    assert "secret" not in log
    assert "Traceback" not in log
