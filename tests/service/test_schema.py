"""Schemathesis: all checks against a real server, from its API description."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from mien.app.access import key_hash
from tests.service.conftest import Serve
from tests.support import ROOT, output_of, tiny_artifact
from tests.support.app import Connect


def test_the_description_is_valid_openapi(connect: Connect) -> None:
    import schemathesis  # takes two seconds, of each process that collects the tests

    document = connect(api_key_sha256=key_hash("k")).app.openapi()
    schemathesis.openapi.from_dict(document).validate()
    references = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document))
    assert set(references) == document["components"]["schemas"].keys(), "each is defined and used"


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
