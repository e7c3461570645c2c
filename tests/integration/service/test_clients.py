"""Clients generated from the API description. Skipped if a generator is not installed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.serving import Server
from tests.support import encoded, gradient_image

_USE = """
import sys
from io import BytesIO
from pathlib import Path
from mien_client import Client
from mien_client.api.expressions import expressions
from mien_client.models import ExpressionsFilesBody, ProblemDetails
from mien_client.types import File

photo = File(payload=BytesIO(Path("photo.jpg").read_bytes()), file_name="photo.jpg", mime_type="image/jpeg")
client = Client(base_url=sys.argv[1])
(image,) = expressions.sync(client=client, body=ExpressionsFilesBody(images=[photo])).images
assert (image.name, image.width) == ("photo.jpg", 320), image
text = File(payload=BytesIO(b"text"), file_name="a.txt", mime_type="text/plain")
refused = expressions.sync(client=client, body=ExpressionsFilesBody(images=[text]))
assert isinstance(refused, ProblemDetails) and refused.status == 415, refused
"""


def _generator(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def description(common: Server, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(httpx.get(f"{common.url}/openapi.json").json()), encoding="utf-8")
    return path


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_generated_python_client_labels_a_photo(common: Server, description: Path) -> None:
    generator, folder = _generator("openapi-python-client"), description.parent
    options = ["--path", str(description), "--meta", "none", "--output-path", "mien_client", "--fail-on-warning"]
    assert "warning" not in _run(folder, generator, "generate", *options).lower()
    (folder / "photo.jpg").write_bytes(encoded(gradient_image(320, 240), "JPEG"))
    _run(folder, sys.executable, "-W", "error", "-c", _USE, common.url)


def test_generated_typescript_types_are_precise(description: Path) -> None:
    output = _run(description.parent, _generator("openapi-typescript"), str(description), "-o", "api.ts")
    assert "warn" not in output.lower()
    types = (description.parent / "api.ts").read_text(encoding="utf-8")
    assert '"surprise" | "fear" | "disgust" | "happiness" | "sadness" | "anger" | "neutral"' in types
