"""The API description: valid, complete, and checked by Schemathesis against a real server."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from mien.app import VERSION
from tests.service.conftest import Connect, key_hash
from tests.support import ROOT, output_of
from tests.support.serving import serving


def test_the_description_is_valid_and_complete(connect: Connect) -> None:
    import schemathesis  # takes two seconds, of each process that collects the tests

    document = connect(api_key_sha256=key_hash("k"), max_images=3).app.openapi()  # type: ignore[attr-defined]
    schemathesis.openapi.from_dict(document).validate()
    assert document["info"]["version"] == VERSION
    schemas, operation = document["components"]["schemas"], document["paths"]["/v1/expressions"]["post"]
    references = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document))
    assert set(references) == schemas.keys(), "each is defined and used"
    for name, schema in schemas.items():
        optional = {"name", "boxes"} if name == "EncodedImage" else set()
        assert set(schema["properties"]) - set(schema["required"]) == optional, "clients can rely on every member"
    images = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]["images"]
    assert images["maxItems"] == schemas["EncodedImages"]["properties"]["images"]["maxItems"] == 3
    responses = operation["responses"]
    assert set(responses) == {"200", "400", "401", "403", "413", "415", "422", "500", "503"}
    assert set(responses["503"]["content"]) == {"application/problem+json", "text/plain"}
    assert set(responses["503"]["headers"]) >= {"Retry-After", "X-Request-ID", "Mien-Provider"}
    assert "WWW-Authenticate" in responses["401"]["headers"]
    assert operation["security"] == [{"bearer": []}, {"header": []}]


@pytest.mark.parametrize(
    ("examples", "seconds"), [(5, 110), pytest.param(1000, 7200, marks=[pytest.mark.soak, pytest.mark.timeout(7300)])]
)
def test_the_service_matches_its_description(artifact: Path, tmp_path: Path, examples: int, seconds: float) -> None:
    with serving(tmp_path, artifact, api_key_sha256=key_hash("a key")) as server:
        program, config = Path(sys.executable).with_name("schemathesis"), Path(__file__).with_name("schemathesis.toml")
        command = [program, "--config-file", config, "run", f"{server.url}/openapi.json", "--checks", "all"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        options = {"env": environment, "cwd": tmp_path, "timeout": seconds}
        print(output_of(*command, "--max-examples", str(examples), **options)[-400:])
    assert "Traceback" not in server.log.read_text()
