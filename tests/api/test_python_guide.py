"""Examples of docs/python.md, executed."""

import importlib.util
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, code_blocks, environment_of, output_of

_EXAMPLES = [text for _, text in code_blocks("docs/python.md", "test")]
_EXTERNAL = {"from celery": "celery", "from torch": "torch"}
# The program that a framework would be: it calls what the example defines, and shows the result.
_CALLERS = {
    "FastAPI()": """
from fastapi.testclient import TestClient

with open("samples/photos/astronaut.jpg", "rb") as photo:
    response = TestClient(app).post("/faces", files={"photo": photo})
assert response.status_code == 200, response.text
assert len(response.json()) == 1
assert TestClient(app).post("/faces", files={"photo": b"no image"}).status_code == 422
print(response.json()[0]["label"])
""",
    "Celery(": """
print(label("samples/photos/astronaut.jpg"))
""",
}


@pytest.mark.parametrize("text", _EXAMPLES, ids=[str(number) for number in range(len(_EXAMPLES))])
def test_an_example_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    external = [module for line, module in _EXTERNAL.items() if line in text]
    for module in external:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"this example needs {module}, which is not installed here")
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    program = tmp_path / "program.py"
    callers = [caller for name, caller in _CALLERS.items() if name in text]
    program.write_text("\n".join([text, *callers]), encoding="utf-8")
    if external:
        output_of(sys.executable, program, cwd=tmp_path, env=environment_of(), timeout=100)
    else:  # starts no process
        monkeypatch.setattr(os, "environ", environment_of())
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(program), run_name="__main__")
