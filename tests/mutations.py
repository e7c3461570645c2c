"""Mutation tests: one-line defects that the tests meant for them must notice.

    python -m tests.mutations                # all; a few seconds each
    python -m tests.mutations prior seed     # those whose name contains one of the words
    python -m tests.mutations --list         # check only that each can be applied

Each is applied to a temporary copy of the checkout. The exit code is 1 if one survives, and 2 if one cannot be applied:
its text must occur exactly once below its folder, so a change of that line changes its entry in mutations.txt.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LIST = Path(__file__).with_suffix(".txt")
_SUFFIXES = (".py", ".js")
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "node_modules", "artifacts", "out", "site", "dist"
)
_TIMEOUT_S = 1800  # of the tests without a mutation; each mutation takes a few seconds


@dataclass(frozen=True, slots=True)
class Mutation:
    """One defect: `old` becomes `new` in the only file below `folder` that contains it; `tests` are names of files."""

    name: str
    folder: str
    old: str
    new: str
    tests: tuple[str, ...]

    def file_in(self, tree: Path) -> Path:
        """The file to change. Raises: LookupError, unless `old` occurs once."""
        base = tree / self.folder
        files = [base] if base.is_file() else sorted(path for path in base.rglob("*") if path.suffix in _SUFFIXES)
        counts = {path: path.read_text(encoding="utf-8").count(self.old) for path in files}
        found = [str(path.relative_to(tree)) for path, count in counts.items() for _ in range(count)]
        if len(found) != 1:
            raise LookupError(f"{self.name}: {self.old!r} occurs {len(found)} times below {self.folder} {found[:3]}")
        return tree / found[0]

    def tests_in(self, tree: Path) -> list[str]:
        """Paths of its test files. Raises: LookupError, if one does not exist."""
        paths = {name: sorted((tree / "tests").rglob(name)) for name in self.tests}
        if missing := [name for name, found in paths.items() if not found]:
            raise LookupError(f"{self.name}: no test file {', '.join(missing)}")
        return [str(path.relative_to(tree)) for found in paths.values() for path in found]


def all_mutations() -> list[Mutation]:
    """Read the list: a line of names, then lines with `-` that become those with `+`."""
    entries: list[tuple[list[str], dict[str, list[str]]]] = []
    for line in _LIST.read_text(encoding="utf-8").splitlines():
        if line[:1] in ("-", "+"):
            entries[-1][1][line[0]].append(line[2:])
        elif line and not line.startswith("#"):
            entries.append((line.split(" | "), {"-": [], "+": []}))
    return [
        Mutation(name, folder, "\n".join(lines["-"]), "\n".join(lines["+"]), tuple(tests.split()))
        for (name, folder, tests), lines in entries
    ]


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the checkout, in which the released models are links."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=_NOT_COPIED)
        (tree / "models/artifacts").symlink_to(ROOT / "models/artifacts")
        # of its own, because runs record their commit
        for command in ("init -q", "add .", "-c user.name=tests -c user.email=tests@localhost commit -qm copy"):
            subprocess.run(["git", *command.split()], cwd=tree, check=True)
        yield tree


def run_tests(tree: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run test files in a copy; without compiled files, which the time of a file would not tell from its mutation."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--no-header", *tests]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def is_killed(tree: Path, mutation: Mutation, failing: Sequence[str]) -> bool:
    """Apply a mutation, run its tests without the `failing` ones, and undo it.

    Raises: LookupError, if one of them is impossible.
    """
    path, tests = mutation.file_in(tree), mutation.tests_in(tree)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        done = run_tests(tree, ["-x", *(f"--deselect={name}" for name in failing), *tests])
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(text, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise LookupError(f"{mutation.name}: the tests could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main() -> int:
    """Run the chosen mutations; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check that the tests notice one-line defects.")
    parser.add_argument("words", nargs="*", help="parts of names; default: all mutations")
    parser.add_argument("--list", action="store_true", help="check that each can be applied, and list them")
    options = parser.parse_args()
    chosen = [each for each in all_mutations() if not options.words or any(word in each.name for word in options.words)]
    survived, errors, failing = 0, 0, list[str]()
    with copied_tree() as tree:
        if not options.list:
            tests = {path for mutation in chosen for path in mutation.tests_in(tree)}
            before = run_tests(tree, sorted(tests))
            failing = re.findall(r"^FAILED (\S+)", before.stdout, re.MULTILINE)
            errors += len(failing)
            for name in failing:
                print(f"error     fails without a mutation: {name}", flush=True)
            if before.returncode not in (0, 1):
                print(f"The tests cannot run:\n{before.stdout[-4000:]}{before.stderr[-2000:]}")
                return 2
        for mutation in chosen:
            try:
                path = mutation.file_in(tree).relative_to(tree)
                mutation.tests_in(tree)
                outcome = "ok" if options.list else "killed" if is_killed(tree, mutation, failing) else "SURVIVED"
                print(f"{outcome:9} {mutation.name} ({path})", flush=True)
                survived += outcome == "SURVIVED"
            except LookupError as error:
                print(f"error     {error}", flush=True)
                errors += 1
    print(f"{len(chosen)} mutations, {survived} survived, {errors} errors")
    return 2 if errors else int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
