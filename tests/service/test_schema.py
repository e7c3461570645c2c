"""The API description: complete, checked by Schemathesis against a real server, and enough to generate a client."""

import asyncio
import base64
import importlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import Serve
from tests.support import ROOT, output_of, sample_photo, tiny_artifact
from tests.support.app import PHOTO, Connect, key_hash
from tests.support.serving import Server


def test_the_description_is_valid_openapi(connect: Connect) -> None:
    import schemathesis  # takes two seconds, of each process that collects the tests

    document = connect(api_key_sha256=key_hash("k")).app.openapi()
    schemathesis.openapi.from_dict(document).validate()
    references = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document))
    assert set(references) == document["components"]["schemas"].keys(), "each is defined and used"


def test_statuses_types_headers_and_members_of_responses_are_described(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, key = connect(api_key_sha256=key_hash("k"), max_images=1, max_bytes=len(PHOTO)), {"x-api-key": "k"}
    document = client.app.openapi()  # type: ignore[attr-defined]
    slots = client.app.state.service.admission  # type: ignore[attr-defined]
    responses = {
        (path, response.status_code): response
        for path, response in [
            ("/health", client.get("/health")),
            ("/health", client.get("/health", headers={"host": "other.example"})),
            ("/ready", client.get("/ready")),
            ("/v1/models", client.get("/v1/models", headers=key)),
            ("/v1/models", client.get("/v1/models")),
            ("/metrics", client.get("/metrics", headers=key)),
            *(("/v1/expressions", client.post("/v1/expressions", **request)) for request in _requests(key)),
        ]
    }
    monkeypatch.setattr(slots, "_slots", asyncio.Semaphore(0))
    monkeypatch.setattr(slots, "waiting", 64)
    responses["/v1/expressions", 503] = client.post("/v1/expressions", content=PHOTO, headers=key)
    assert {status for _, status in responses} == {200, 400, 401, 403, 413, 415, 422, 503}
    for (path, status), response in responses.items():
        (operation,) = document["paths"][path].values()
        described = operation["responses"][str(status)]
        kind = response.headers["content-type"].partition(";")[0]
        named = {"x-request-id", "mien-provider", "retry-after", "www-authenticate"} & set(response.headers)
        assert {name.lower() for name in described["headers"]} >= named, (path, status)
        schema = described["content"][kind]["schema"]
        if "$ref" in schema:
            _check_members(response.json(), schema, document["components"]["schemas"])


def _requests(key: dict[str, str]) -> list[dict[str, Any]]:
    kind = {"content-type": "image/jpeg"}
    return [
        {"content": PHOTO, "headers": kind | key},
        {"content": PHOTO, "headers": kind},
        {"content": PHOTO, "headers": kind | key | {"origin": "http://evil.example"}},
        {"content": PHOTO + b"x", "headers": kind | key},
        {"content": b"text", "headers": kind | key},
        {"content": PHOTO, "headers": kind | key, "params": {"crops": "perhaps"}},
    ]


def _check_members(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Each member that is described is there, null if it is empty, and no other."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(value, list):
        for item in value:
            _check_members(item, schema["items"], schemas)
    elif isinstance(value, dict) and "properties" in schema:
        assert set(value) == set(schema["properties"]) == set(schema["required"]), schema["title"]
        for name, member in value.items():
            _check_members(member, schema["properties"][name], schemas)


def test_a_generated_client_sends_an_image_a_form_boxes_and_base64(
    common: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By openapi-python-client, which needs an older Typer than this program, and so an environment of its own."""
    generator = ROOT / ".venv-openapi/bin/openapi-python-client"
    if not generator.exists():
        pytest.skip("openapi-python-client is not installed: python -m venv .venv-openapi, and pip install it there")
    package = tmp_path / "generated"
    output_of(generator, "generate", "--url", f"{common.url}/openapi.json", "--output-path", package, "--meta", "none")
    monkeypatch.syspath_prepend(tmp_path)
    call = importlib.import_module("generated.api.expressions.expressions").sync
    models, types = importlib.import_module("generated.models"), importlib.import_module("generated.types")
    unopened = importlib.import_module("generated").Client(common.url, timeout=60)
    photo = sample_photo().read_bytes()

    def file() -> Any:
        return types.File(io.BytesIO(photo), "a.jpg", "image/jpeg")

    with unopened as client:
        (detected,) = call(client=client, body=file()).images[0].faces
        form = call(client=client, body=models.ExpressionsFilesBody(images=[file(), file()]), crops=True).images
        assert [(image.name, len(image.faces), image.faces[0].crop.media_type) for image in form] == [
            ("a.jpg", 1, "image/png")
        ] * 2
        encoded = models.EncodedImage(base64=base64.b64encode(photo).decode())
        boxed = models.EncodedImage(encoded.base64, boxes=[models.Box(170, 40, 110, 130)])
        plain, boxes = call(client=client, body=models.EncodedImages([encoded, boxed])).images
        assert plain.faces == [detected]
        assert (boxes.faces[0].box.width, boxes.faces[0].crop, boxes.error) == (110, None, None)
        refused = call(client=client, body=types.File(io.BytesIO(b"text")))
        assert (refused.status, refused.type_, refused.errors) == (415, "urn:mien:problem:unsupported", [])


@pytest.mark.parametrize(
    ("examples", "seconds"), [(5, 110), pytest.param(1000, 7200, marks=[pytest.mark.soak, pytest.mark.timeout(7300)])]
)
def test_the_service_matches_its_description(serve: Serve, tmp_path: Path, examples: int, seconds: float) -> None:
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    server = serve(artifact=artifact, api_key_sha256=key_hash("a key"))
    program, config = Path(sys.executable).with_name("schemathesis"), Path(__file__).with_name("schemathesis.toml")
    command = [program, "--config-file", config, "run", f"{server.url}/openapi.json", "--checks", "all"]
    for header in ("X-API-Key: a key", "Authorization: Bearer a key"):
        command += ["--header", header]
    command += ["--max-examples", str(examples), "--seed", "20", "--no-color"]
    hooks = "tests.service.schemathesis_hooks"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": hooks}
    print(output_of(*command, env=environment, cwd=server.folder, timeout=seconds)[-400:])
    assert "Traceback" not in server.log.read_text()
