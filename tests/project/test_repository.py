"""Files that name each other: links, documents and tests, photos and licenses."""

import re
import tomllib

from mien.app import VERSION
from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_program_and_package_have_the_same_version() -> None:
    assert PROJECT["version"] == VERSION, "reinstall: pip install --no-deps --no-build-isolation --editable ."


def test_relative_links_in_documents_exist() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")):
        text = re.sub(r"```.*?```|<!--.*?-->", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)|<img[^>]+src=\"([^\"]+)\"", text):
            link = "".join(target)
            if not re.match(r"[a-z]+:", link):
                assert (document.parent / link).exists(), f"{document.relative_to(ROOT)}: {link}"


def test_every_test_that_a_document_names_exists() -> None:
    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"(?:::|`)(test_\w+)`", text))
    assert len(named) > 20
    assert named <= set(re.findall(r"^(?:async )?def (test_\w+)", tests, re.MULTILINE))


def test_every_sample_photo_states_its_license() -> None:
    table = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    for photo in (ROOT / "samples" / "photos").iterdir():
        assert f"`photos/{photo.name}`" in table, f"samples/README.md does not state the license of {photo.name}"
