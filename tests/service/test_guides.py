"""Examples of the guides, executed: requests against a real service, and programs of Python."""

import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, code_blocks, environment_of, output_of
from tests.support.serving import Server

_COMMANDS = {"sh": ["sh", "-eu", "-c"], "python": [sys.executable, "-c"], "js": ["node", "--input-type=module", "-e"]}
_NEEDED = {"sh": "curl", "js": "node"}
_REQUESTS = code_blocks("docs/service.md", "test")
_PROGRAMS = [text for _, text in code_blocks("docs/python.md", "test")]
# Calls what the example for a framework defines.
_CALLER = """
from fastapi.testclient import TestClient

with open("samples/photos/astronaut.jpg", "rb") as photo:
    response = TestClient(app).post("/faces", files={"photo": photo})
assert (response.status_code, len(response.json())) == (200, 1), response.text
assert TestClient(app).post("/faces", files={"photo": b"no image"}).status_code == 422
"""


@pytest.mark.parametrize(("language", "text"), _REQUESTS)
def test_an_example_of_a_request_runs(language: str, text: str, common: Server) -> None:
    program = _NEEDED.get(language)
    if program and not shutil.which(program):
        pytest.skip(f"this example needs {program}, which is not installed here")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{common.port}")
    environment = os.environ | {"PYTHONPATH": ""}
    output = output_of(*_COMMANDS[language], text, cwd=ROOT, env=environment, timeout=90)
    assert output.strip(), "an example shows something"


@pytest.mark.parametrize("text", _PROGRAMS, ids=[str(number) for number in range(len(_PROGRAMS))])
def test_an_example_of_a_program_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    program = tmp_path / "program.py"
    program.write_text(text + _CALLER * ("FastAPI()" in text))
    monkeypatch.setattr(os, "environ", environment_of())
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program), run_name="__main__")
