"""Mutation tests: small defects, drawn at random, that the tests of their part should notice.

    python -m tests.mutations                     # 40 mutants, drawn with the date as seed
    python -m tests.mutations --draw 10 --seed 7  # others
    python -m tests.mutations --only app/service  # of some files

A mutant changes one comparison, operator, condition, number or truth value of the core. It is applied to a temporary
copy of the checkout, and survives if all tests of its part pass. A survivor is equivalent, needs a test, or shows code
that nobody needs. The exit code is 1 if one survives.
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
# files and folders to draw from, and the tests of each
CORE: Final = {
    "data/contract": ("tests/data",),
    "data/quality.py": ("tests/data/test_quality.py", "tests/inference"),
    "models/network.py": ("tests/models", "tests/training/test_step.py"),
    "training/train.py": ("tests/training",),
    "training/distill.py": ("tests/training/test_step.py", "tests/training/test_options.py"),
    "training/metrics.py": ("tests/training/test_metrics.py", "tests/training/test_calibration.py"),
    "training/export.py": ("tests/training/test_release.py", "tests/training/test_classes.py"),
    "app/inference": ("tests/inference", "tests/api"),
    "app/labeling/journal.py": ("tests/labeling",),
    "app/labeling/run.py": ("tests/labeling",),
    "app/labeling/tables.py": ("tests/labeling/test_outputs.py", "tests/labeling/test_inputs.py"),
    "app/service/api.py": ("tests/service",),
    "app/access.py": ("tests/service",),
}
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "node_modules", "artifacts", "out", "site", "dist"
)
_TIMEOUT_S = 1800  # of the tests of one mutant
_SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A part of a file, by offsets of its text, and what replaces it."""

    file: str
    start: int
    end: int
    new: str
    tests: tuple[str, ...]

    def text_in(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def described(self, text: str) -> str:
        line = text.count("\n", 0, self.start) + 1
        return f"{self.file}:{line}: {' '.join(text[self.start : self.end].split())}  ->  {self.new}"


def mutants_of(file: str, tests: tuple[str, ...]) -> list[Mutant]:
    """All mutants of a file: one changed expression each, without messages, annotations and defaults of options."""
    text = (ROOT / file).read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw, found = text.encode(), []
    for node in _expressions(ast.parse(text)):
        changed = _changed(node)
        if not changed:
            continue
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        start, end = len(raw[:first].decode()), len(raw[:last].decode())
        found += [Mutant(file, start, end, f"({new})", tests) for new in changed]
    return found


def _expressions(node: ast.AST) -> Iterator[Any]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(value, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                yield child
                yield from _expressions(child)


def _changed(node: Any) -> list[str]:
    """Source of the changed expressions."""
    changes: list[tuple[str, Any]]
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED:
            changes = [("ops", [_SWAPPED[type(operator)]()])]
        case ast.BinOp(op=operator) if type(operator) in _SWAPPED and not _has_text(node):
            changes = [("op", _SWAPPED[type(operator)]())]
        case ast.BoolOp(op=operator):
            changes = [("op", _SWAPPED[type(operator)]())]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [ast.unparse(operand)]
        case ast.IfExp(test=test):
            changes = [("test", ast.UnaryOp(ast.Not(), test))]
        case ast.Constant(value=bool(value)):
            return [repr(not value)]
        case ast.Constant(value=int(value) | float(value)):
            return [repr(value + 1)]
        case _:
            return []
    found = []
    for name, replacement in changes:
        changed = copy.deepcopy(node)
        setattr(changed, name, replacement)
        found.append(ast.unparse(ast.fix_missing_locations(changed)))
    return found


def _has_text(node: ast.BinOp) -> bool:
    return any(isinstance(of, ast.JoinedStr) or isinstance(getattr(of, "value", None), str) for of in ast.walk(node))


def all_mutants(only: str = "") -> list[Mutant]:
    found = []
    for place, tests in CORE.items():
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = str(file.relative_to(ROOT))
            found += mutants_of(name, tests) if name.startswith(only) else []
    return found


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


def run_tests(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy; without compiled files, which the time of a file would not tell from its mutation."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--no-header", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def is_killed(tree: Path, mutant: Mutant, failing: list[str]) -> bool:
    """Apply a mutant, run its tests without the `failing` ones, and undo it."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.text_in(text), encoding="utf-8")
    try:
        return run_tests(tree, "-x", *(f"--deselect={name}" for name in failing), *mutant.tests).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Draw mutants and run their tests; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check that the tests notice small defects, drawn at random.")
    parser.add_argument("--draw", type=int, default=40, help="number of mutants")
    parser.add_argument("--seed", type=int, default=int(datetime.now(UTC).strftime("%Y%m%d")), help="default: today")
    parser.add_argument("--only", default="", help="files that begin so, such as app/service")
    options = parser.parse_args()
    mutants = all_mutants(options.only)
    drawn = random.Random(options.seed).sample(mutants, min(options.draw, len(mutants)))  # noqa: S311 (no secret)
    survivors = 0
    with copied_tree() as tree:
        before = run_tests(tree, *sorted({test for mutant in drawn for test in mutant.tests}))
        failing = re.findall(r"^FAILED (\S+)", before.stdout, re.MULTILINE)
        for name in failing:
            print(f"fails without a mutant: {name}", flush=True)
        for mutant in drawn:
            killed = is_killed(tree, mutant, failing)
            survivors += not killed
            text = (ROOT / mutant.file).read_text(encoding="utf-8")
            print(f"{'killed' if killed else 'SURVIVED':9} {mutant.described(text)}", flush=True)
    print(f"seed {options.seed}: {len(drawn) - survivors} of {len(drawn)} killed ({len(mutants):,} mutants in all)")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
