"""Version, workflows and mutants of the repository."""

import ast
import re
import tomllib
from itertools import chain

import yaml

from mien.app import VERSION
from tests.mutations import CORE, all_mutants
from tests.support import ROOT


def test_program_and_package_have_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION, "reinstall: pip install --no-deps --no-build-isolation --editable ."


def test_a_workflow_may_only_read_and_its_actions_are_pinned_to_commits() -> None:
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
        assert content["permissions"] == {"contents": "read"}
        assert workflow.name == "release.yml" or not any("permissions" in job for job in content["jobs"].values())
        for step in chain.from_iterable(job["steps"] for job in content["jobs"].values()):
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step


def test_every_mutant_is_valid_and_has_tests() -> None:
    mutants = all_mutants()
    assert {place for place in CORE if not any(mutant.file.startswith(place) for mutant in mutants)} == set()
    assert all((ROOT / test).exists() for tests in CORE.values() for test in tests)
    for mutant in mutants[::101]:
        text = (ROOT / mutant.file).read_bytes()
        assert ast.dump(ast.parse(mutant.text_in(text))) != ast.dump(ast.parse(text)), mutant.described(text)
