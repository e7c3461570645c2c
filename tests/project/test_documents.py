"""Commands and settings in documents exist: whoever copies a line gets no usage error."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from mien.app.cli import app
from mien.app.settings import Settings
from mien.training.cli import app as training
from tests.support import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/**/*.md"), ROOT / "llms.txt"]
PAGES = [page for page in DOCUMENTS if page.name != "CHANGELOG.md" and "decisions" not in page.parts]
MIEN = re.compile(r"(?:^|[|;`(]|&& )\s*(?:[\w./\\-]*[/\\])?mien ([a-z].*?)(?:$|[`|])", re.MULTILINE)


def _commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in MIEN.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            yield str(page.relative_to(ROOT)), line.strip()


def _commands_of(*apps: typer.Typer) -> dict[str, set[str]]:
    """Options of each command."""
    found: dict[str, set[str]] = {}
    for program in apps:
        group: Any = typer.main.get_command(program)
        for name, command in group.commands.items():
            for part, inner in getattr(command, "commands", {"": command}).items():
                options = {text for option in inner.params for text in (*option.opts, *option.secondary_opts)}
                found[f"{name} {part}".strip()] = options
    return found


def test_commands_of_documents_have_options_that_exist() -> None:
    root, seen = _commands_of(app, training), 0
    for page, line in _commands():
        words = shlex.split(line.replace("'", " ") if line.count("'") % 2 else line, comments=True)
        command = words.pop(0)
        if command == "models" and words and not words[0].startswith("-"):
            command += f" {words.pop(0)}"
        if command == "data":  # argparse
            continue
        assert command in root, f"{page}: mien {line}: no such command"
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert used <= root[command] | {"--help", "-h"}, f"{page}: mien {line}: no such option"
        seen += 1
    assert seen > 60


def test_settings_of_documents_exist() -> None:
    known = {f"MIEN_{name.upper()}" for name in Settings.model_fields}
    elsewhere = {"MIEN_DATA_DIR", "MIEN_PHOTOS_DIR", "MIEN_CHROMIUM", "MIEN_MOBILEFACENET"}  # of training and tests
    for page in PAGES:
        named = set(re.findall(r"\bMIEN_[A-Z_]+[A-Z]\b", page.read_text(encoding="utf-8")))
        assert named <= known | elsewhere, f"{page.relative_to(ROOT)}: {named - known - elsewhere}"


def test_make_has_the_targets_that_documents_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|[`&] ?)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, f"{page.relative_to(ROOT)}: {named - targets}"
