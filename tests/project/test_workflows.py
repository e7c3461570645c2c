"""Workflows and forms of the hosted repository, read as YAML; the checks of a release run for real."""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted(path.name for path in (GITHUB / "workflows").iterdir())


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((GITHUB / name).read_text(encoding="utf-8"))
    return content


def _steps(workflow: str, job: str | None = None) -> list[dict[str, Any]]:
    jobs = _read(f"workflows/{workflow}")["jobs"]
    return [step for name, content in jobs.items() if job in (None, name) for step in content["steps"]]


def _commands(workflow: str, job: str | None = None) -> list[str]:
    return [step["run"] for step in _steps(workflow, job) if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_may_only_read_and_its_actions_are_pinned_to_commits(workflow: str) -> None:
    content = _read(f"workflows/{workflow}")
    assert content["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    may_write = {"publish": {"id-token": "write"}, "image": {"contents": "read", "packages": "write"}}
    assert granted == (may_write if workflow == "release.yml" else {})
    for step in _steps(workflow):
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
    assert all("timeout-minutes" in job for job in content["jobs"].values())


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
@pytest.mark.parametrize(
    ("tag", "more", "passes"), [("v0.2.0", [], True), ("v0.2.0", ["data/contract.py"], False), ("v0.2.1", [], False)]
)
def test_a_release_has_one_top_level_name_and_the_version_of_its_tag(
    tag: str, more: list[str], passes: bool, tmp_path: Path
) -> None:
    (tmp_path / "dist").mkdir()
    with zipfile.ZipFile(tmp_path / "dist" / "mien-0.2.0-py3-none-any.whl", "w") as wheel:
        for name in ["mien/__init__.py", "mien/data/contract.py", "mien-0.2.0.dist-info/METADATA", *more]:
            wheel.writestr(name, "")
    (command,) = (command for command in _commands("release.yml", "build") if "unzip" in command)
    env = {"PATH": os.environ["PATH"], "TAG": tag}
    result = subprocess.run(["bash", "-e", "-c", command], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (result.returncode == 0) is passes
