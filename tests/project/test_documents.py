"""Commands, options, settings, targets, columns, links and tests that documents name exist."""

import re
import shlex
from typing import Any

import typer

from mien.app.cli import app
from mien.app.labeling.tables import COLUMNS
from mien.app.settings import Settings
from mien.training.cli import app as training
from tests.support import ROOT

FILES = (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/*/*.md"), ROOT / "llms.txt")
DOCUMENTS = {path: path.read_text(encoding="utf-8") for path in FILES}
RECORDS = (ROOT / "CHANGELOG.md", *ROOT.glob("docs/decisions/*.md"))  # of what was
PAGES = {path: text for path, text in DOCUMENTS.items() if path not in RECORDS}
MIEN = re.compile(r"(?:^|[|;`(]|&& )\s*(?:[\w./\\-]*[/\\])?mien ([a-z].*?)(?:$|[`|])", re.MULTILINE)
TABLE_ROW = re.compile(r"^\| (.*?) \|", re.MULTILINE)


def test_commands_of_documents_have_options_that_exist() -> None:
    known: dict[str, set[str]] = {}
    for program in (app, training):
        group: Any = typer.main.get_command(program)
        for name, command in group.commands.items():
            for part, inner in getattr(command, "commands", {"": command}).items():
                options = {text for option in inner.params for text in (*option.opts, *option.secondary_opts)}
                known[f"{name} {part}".strip()] = options
    lines = [(page, line) for page, text in PAGES.items() for line in MIEN.findall(text.replace("\\\n", " "))]
    assert len(lines) > 60
    for page, line in lines:
        command, *words = shlex.split(line.replace("'", " ") if line.count("'") % 2 else line, comments=True)
        if command == "models" and words and not words[0].startswith("-"):
            command += f" {words.pop(0)}"
        if command != "data":  # argparse
            assert command in known, f"{page}: mien {line}: no such command"
            used = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
            assert used <= known[command] | {"--help", "-h"}, f"{page}: mien {line}: no such option"


def test_settings_and_targets_of_make_that_documents_name_exist() -> None:
    settings = {f"MIEN_{name.upper()}" for name in Settings.model_fields}
    settings |= {"MIEN_DATA_DIR", "MIEN_PHOTOS_DIR", "MIEN_CHROMIUM", "MIEN_MOBILEFACENET"}  # of training and tests
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page, text in PAGES.items():
        assert set(re.findall(r"\bMIEN_[A-Z_]+[A-Z]\b", text)) <= settings, page
        assert set(re.findall(r"(?:^|[`&] ?)make ([a-z-]+)", text, re.MULTILINE)) <= targets, page


def test_relative_links_in_documents_exist() -> None:
    for page, text in DOCUMENTS.items():
        prose = re.sub(r"(?s)```.*?```|<!--.*?-->", "", text)
        for link in map("".join, re.findall(r"\]\(([^)#\s]+)[^)]*\)|<img[^>]+src=\"([^\"]+)\"", prose)):
            assert re.match(r"[a-z]+:", link) or (page.parent / link).exists(), f"{page}: {link}"


def test_every_test_that_a_document_names_exists() -> None:
    named = set(re.findall(r"(?:::|`)(test_\w+)`", DOCUMENTS[ROOT / "docs" / "service.md"]))
    assert len(named) > 20
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert named <= set(re.findall(r"^(?:async )?def (test_\w+)", tests, re.MULTILINE))


def test_tables_name_every_column_of_the_output_and_the_license_of_every_sample() -> None:
    columns = DOCUMENTS[ROOT / "docs" / "outputs.md"].split("## One row per face")[1].split("\n\n")[2]
    assert {name for row in TABLE_ROW.findall(columns) for name in re.findall(r"`(\w+)`", row)} == set(COLUMNS)
    licensed = TABLE_ROW.findall(DOCUMENTS[ROOT / "samples" / "README.md"])
    assert {f"`photos/{photo.name}`" for photo in (ROOT / "samples" / "photos").iterdir()} <= set(licensed)
