"""Workflows of the hosted repository, read as YAML."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_its_actions_are_pinned_to_commits(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    may_write = {
        "publish": {"id-token": "write"},
        "page": {"contents": "write"},
        "image": {"contents": "read", "packages": "write"},
    }
    assert granted == (may_write if workflow.name == "release.yml" else {})
    for job in content["jobs"].values():
        assert "timeout-minutes" in job
        for step in job["steps"]:
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
