"""Examples of the documentation, executed against a real service."""

import os
import re
import shutil
import sys

import pytest

from mien.app.service.metrics import Metrics
from mien.app.service.problems import INTERNAL, PROBLEMS
from mien.app.settings import Settings
from tests.support import ROOT, code_blocks, output_of
from tests.support.serving import Server

_COMMANDS = {"sh": ["sh", "-eu", "-c"], "python": [sys.executable, "-c"], "js": ["node", "--input-type=module", "-e"]}
_NEEDED = {"sh": "curl", "js": "node"}
_EXAMPLES = [block for name in ("api", "deployment") for block in code_blocks(f"docs/{name}.md", "test")]


@pytest.mark.parametrize(("language", "text"), _EXAMPLES)
def test_an_example_runs(language: str, text: str, common: Server) -> None:
    program = _NEEDED.get(language)
    if program and not shutil.which(program):
        pytest.skip(f"this example needs {program}, which is not installed here")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{common.port}")
    environment = os.environ | {"PYTHONPATH": ""}
    output = output_of(*_COMMANDS[language], text, cwd=ROOT, env=environment, timeout=90)
    assert output.strip(), "an example shows something"


def test_every_problem_of_the_service_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for problem in (*(row for _, row in PROBLEMS), INTERNAL):
        assert f"`{problem.slug}`" in guide, problem
        assert re.search(rf"^\| [\d, ]*\b{problem.status}\b", guide, flags=re.MULTILINE), problem


def test_every_setting_that_the_guide_names_exists_with_its_default() -> None:
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    fields = {f"MIEN_{name.upper()}": field.default for name, field in Settings.model_fields.items()}
    assert set(re.findall(r"`(MIEN_\w+)", guide)) <= set(fields)
    rows = re.findall(r"^\| (`MIEN.*?) \| ([\d., MB]+) \|", guide, flags=re.MULTILINE)
    told = [pair for names, texts in rows for pair in zip(names.split(", "), texts.split(", "), strict=True)]
    assert len(told) >= 15
    for name, text in told:
        if number := re.fullmatch(r"(\d+(?:\.\d+)?)( MB?)?", text):
            assert fields[name.strip("`")] == float(number[1]) * (1_000_000 if number[2] else 1), name


def test_every_metric_that_the_guide_names_exists() -> None:
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(mien_\w+)[`{]", guide))
    families = {family.name for family in Metrics().registry.collect()}
    assert len(named) >= 9
    assert {name.removesuffix("_total") for name in named} <= families
