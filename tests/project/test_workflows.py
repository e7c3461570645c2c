"""Workflows of the hosted repository, read as YAML."""

import re
from typing import Any

import pytest
import yaml

from tests.support import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.mark.parametrize("workflow", sorted(path.name for path in WORKFLOWS.iterdir()))
def test_a_workflow_may_only_read_and_its_actions_are_pinned_to_commits(workflow: str) -> None:
    content: dict[str, Any] = yaml.safe_load((WORKFLOWS / workflow).read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    may_write = {"publish": {"id-token": "write"}, "image": {"contents": "read", "packages": "write"}}
    assert granted == (may_write if workflow == "release.yml" else {})
    for step in (step for job in content["jobs"].values() for step in job["steps"]):
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
    assert all("timeout-minutes" in job for job in content["jobs"].values())
