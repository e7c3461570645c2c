"""Mutation tests: small defects, drawn at random, that the tests of their part should notice.

    python -m tests.mutations                     # 40 mutants, drawn with the date as seed
    python -m tests.mutations --draw 10 --seed 7  # others
    python -m tests.mutations --only app/service  # of files that begin so; several with commas

A mutant changes one comparison, operator, condition, argument, number or truth value of the core, or leaves a call out.
It is applied to a temporary copy of the checkout, and survives if all tests that execute its statement pass; a run
without mutants records which these are. A survivor is equivalent, needs a test, or shows code that nobody needs. The
exit code is 1 if one survives.
"""

import argparse
import ast
import builtins
import compileall
import importlib
import multiprocessing
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
# files and folders to draw from, and the tests of each
CORE: Final = {
    "data/contract": ("tests/data",),
    "data/quality.py": ("tests/data", "tests/inference"),
    "models/network.py": ("tests/models", "tests/training"),
    "training/train.py": ("tests/training",),
    "training/distill.py": ("tests/training",),
    "training/losses/__init__.py": ("tests/training",),
    "training/metrics.py": ("tests/training",),
    "training/export.py": ("tests/training",),
    "app/inference": (
        "tests/inference",
        "tests/api",
        "tests/page/test_core.py",
        "tests/service/test_expressions.py",
        "tests/labeling/test_outputs.py",
    ),
    "app/labeling/journal.py": ("tests/labeling",),
    "app/labeling/run.py": ("tests/labeling",),
    "app/labeling/tables.py": ("tests/labeling",),
    "app/service": ("tests/service",),
}
_EXECUTED: Final = "_executed"  # name of the record in marked files
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_SWAPPED_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any", "argmax": "argmin", "floor": "ceil"}
# messages, documentation, and how long a machine waits, and how much it does at once
_NO_BEHAVIOR = re.compile(
    r"\b(logger|_log|logging|print|warnings|typer|Field|__repr__|__str__|TYPE_CHECKING)\b|_S\b|TIMEOUT|timeout|BATCH"
)
_NO_ARGUMENTS = {
    "description", "examples", "title", "encoding", "strict", "name", "stacklevel", "exc_info", "check", "maxsize",
}  # fmt: skip
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "node_modules", "artifacts", "out", "site", "dist"
)
_PRELOADED = "albumentations cv2 fastapi httpx hypothesis onnx onnxruntime pytest timm torch typer"
_NO_WARNING = "-Wignore::pytest.PytestAssertRewriteWarning"  # of plugins imported before
_TRACE = "MUTATIONS_TRACE"  # variable with the file to which traced processes append


@dataclass(frozen=True, slots=True)
class Mutant:
    """A part of a file, by offsets of its text; what replaces it; its statement, or nothing outside of functions."""

    file: str
    start: int
    end: int
    new: str
    statement: str
    tests: tuple[str, ...]

    def text_in(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def described(self, text: str) -> str:
        line = text.count("\n", 0, self.start) + 1
        return f"{self.file}:{line}: {' '.join(text[self.start : self.end].split())}  ->  {self.new}"


def mutants_of(file: str, tests: tuple[str, ...]) -> list[Mutant]:
    """All mutants of a file: one changed expression each."""
    text = (ROOT / file).read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw, found = text.encode(), []
    for node, field, line in _expressions(ast.parse(text), 0):
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        start, end = len(raw[:first].decode()), len(raw[:last].decode())
        statement = f"{file}:{line}" if line else ""
        found += [Mutant(file, start, end, f"({ast.unparse(new)})", statement, tests) for new in _changed(node, field)]
    return found


def marked(file: str, text: str) -> str:
    """The text of a file whose functions look up each statement in the record before they execute it."""
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTION)]
    for node in {node: None for function in functions for node in ast.walk(function)}:
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                docstring = [statements.pop(0)] if isinstance(node, _FUNCTION) and ast.get_docstring(node) else []
                marks = [ast.parse(f"{_EXECUTED}['{file}:{statement.lineno}']").body[0] for statement in statements]
                pairs = zip(marks, statements, strict=True)
                setattr(node, name, [*docstring, *(part for pair in pairs for part in pair)])
    # processes that do not record have none
    default = "__import__('collections').defaultdict(int)"
    tree.body.insert(1, ast.parse(f"{_EXECUTED} = getattr(__import__('builtins'), '{_EXECUTED}', {default})").body[0])
    return ast.unparse(tree)


def _expressions(node: ast.AST, line: int, inside: bool = False) -> Iterator[tuple[Any, str, int]]:
    """Expressions that are behavior, each with its field in its parent and the line of its statement in a function."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in {"annotation", "returns", "decorator_list"}:
                continue
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr) or getattr(child, "name", "") == "__repr__":
                continue
            if isinstance(child, ast.keyword) and child.arg in _NO_ARGUMENTS:
                continue
            is_executed = inside or (isinstance(node, _FUNCTION) and name == "body")
            if isinstance(child, ast.stmt):
                line = child.lineno if is_executed else 0
                is_simple = not any(isinstance(part, ast.stmt) for part in ast.walk(child) if part is not child)
                if is_simple and _NO_BEHAVIOR.search(ast.unparse(child)):
                    continue
            if isinstance(child, ast.expr):
                yield child, f"{type(node).__name__}.{name}", line
            yield from _expressions(child, line, is_executed)


def _changed(node: Any, field: str) -> list[ast.expr]:  # noqa: PLR0911
    """What may replace an expression."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED:
            return [_with(node, ops=[_SWAPPED[type(operator)]()])]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _SWAPPED:
            is_text = isinstance(node, ast.BinOp) and re.search("['\"]", ast.unparse(node))
            return [] if is_text else [_with(node, op=_SWAPPED[type(operator)]())]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.Constant(value=int(value) | float(value)):
            return [ast.Constant(not value if isinstance(value, bool) else value + 1)]
        case ast.Call() if field == "Expr.value":
            return [ast.Constant(None)]
        case _ if field.endswith(".test"):
            return [ast.UnaryOp(ast.Not(), node)]
        case ast.Name(id=name) | ast.Attribute(attr=name) if field == "Call.func" and name in _SWAPPED_NAMES:
            return [_with(node, **{"id" if isinstance(node, ast.Name) else "attr": _SWAPPED_NAMES[name]})]
        case ast.Call(keywords=keywords):
            dropped = [keyword for keyword in keywords if keyword.arg and keyword.arg not in _NO_ARGUMENTS]
            return [_with(node, keywords=[other for other in keywords if other is not keyword]) for keyword in dropped]
    return []


def _with(node: Any, **fields: object) -> Any:
    return type(node)(**vars(node) | fields)


def all_mutants(only: Sequence[str] = ("",)) -> list[Mutant]:
    found = []
    for place, tests in CORE.items():
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = str(file.relative_to(ROOT))
            found += mutants_of(name, tests) if name.startswith(tuple(only)) else []
    return found


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the checkout, in which the released models are links and all later imports and processes are."""
    with tempfile.TemporaryDirectory(prefix="mutations-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder).resolve() / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=_NOT_COPIED)
        (tree / "models/artifacts").symlink_to(ROOT / "models/artifacts")
        # of its own, because runs record their commit
        for command in ("init -q", "add .", "-c user.name=tests -c user.email=tests@localhost commit -qm copy"):
            subprocess.run(["git", *command.split()], cwd=tree, check=True)
        # the time of a compiled file would not tell it from its mutation
        compileall.compile_dir(tree, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        sys.path = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        os.chdir(tree)
        yield tree


class Record(dict[str, None]):
    """Statements that this process has executed in this phase of a test; a new one is appended to a file.

    A look-up of a known statement calls no function, as some tests count calls.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]  # of a plugin of pytest

    def __init__(self) -> None:
        self.file = os.open(os.environ[_TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        vars(builtins)[_EXECUTED] = self

    def __missing__(self, statement: str) -> None:
        self[statement] = None
        os.write(self.file, f"{statement}\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\n".encode())

    def pytest_runtest_setup(self) -> None:
        self.clear()

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


class Trace:
    """Seconds of each test that passes without a mutant, and the tests that execute each statement of the core."""

    def __init__(self, tree: Path, tests: Sequence[str], files: Iterable[str]) -> None:
        file, site = tree.with_name("trace"), tree.with_name("site")
        site.mkdir()
        (site / "sitecustomize.py").write_text("from tests.mutations import Record; Record()\n", encoding="utf-8")
        os.environ |= {_TRACE: str(file), "PYTHONPATH": f"{tree}{os.pathsep}{site}"}
        texts = {name: (tree / name).read_text(encoding="utf-8") for name in files}
        for name, text in texts.items():
            (tree / name).write_text(marked(name, text), encoding="utf-8")
        output = run_tests(tree, *tests, "-vv", "--durations=0", "--durations-min=0", timeout_s=7200, is_traced=True)[1]
        for name, text in texts.items():
            (tree / name).write_text(text, encoding="utf-8")
        os.environ["PYTHONPATH"] = str(tree)
        self.seconds = dict.fromkeys(re.findall(r"^(tests/\S+::.+?) PASSED", output, re.MULTILINE), 0.0)
        for seconds, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(tests/.+)", output, re.MULTILINE):
            if test in self.seconds:
                self.seconds[test] += float(seconds)
        self.failing = re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", output, re.MULTILINE)
        self.by_statement: dict[str, set[str]] = defaultdict(set)
        for line in file.read_text(encoding="utf-8").splitlines():
            statement, _, test_and_phase = line.partition("\t")
            test, _, phase = test_and_phase.rpartition(" ")
            # other tests may use what this one set up
            self.by_statement[statement].add(test if phase == "(call)" else test.partition("::")[0])

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that execute a mutant, those of the quickest file first."""
        tests = self.by_statement[mutant.statement] if mutant.statement else {""}
        chosen = tests - {""} or (tests and set(mutant.tests))
        by_file: defaultdict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            file = test.partition("::")[0]
            if chosen & {test, file, file.rpartition("/")[0]}:
                by_file[file].append(test)
        by_time = sorted(by_file.values(), key=lambda tests: sum(self.seconds[test] for test in tests))
        return list(chain.from_iterable(by_time))


def run_tests(tree: Path, *arguments: str, timeout_s: float, is_traced: bool = False) -> tuple[int | None, str]:
    """Run tests in a fork of this process, which has imported the large libraries. Returns exit status and output."""
    output = tree.with_name("output")
    process = multiprocessing.get_context("fork").Process(target=_pytest, args=(output, arguments, is_traced))
    process.start()
    process.join(timeout_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # and servers that a failed test leaves
    process.join()
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")


def _pytest(output: Path, arguments: Sequence[str], is_traced: bool) -> None:
    import pytest

    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.modules["__main__"] = ModuleType("__main__")  # which workers of tests would import
    plugins = [Record()] if is_traced else []
    fixed = ["-q", "-rfE", "--tb=no", "-pno:cacheprovider", _NO_WARNING, f"--basetemp={output.with_name('tests')}"]
    sys.exit(pytest.main([*fixed, *arguments], plugins=plugins))


def killed_by(tree: Path, mutant: Mutant, tests: Sequence[str], timeout_s: float) -> str:
    """Apply a mutant, run tests until one fails, and undo it. Returns the failure, or nothing."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.text_in(text), encoding="utf-8")
    try:
        code, output = run_tests(tree, "-x", *tests, timeout_s=timeout_s)
    finally:
        path.write_text(text, encoding="utf-8")
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return "" if code == 0 else failures[0] if failures else f"exit status {code}"


def main() -> int:
    """Draw mutants and run their tests; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check that the tests notice small defects, drawn at random.")
    parser.add_argument("--draw", type=int, default=40, help="number of mutants")
    parser.add_argument("--seed", type=int, default=int(datetime.now(UTC).strftime("%Y%m%d")), help="default: today")
    parser.add_argument("--only", default="", help="files that begin so, such as app/service,app/labeling/journal.py")
    options = parser.parse_args()
    mutants = all_mutants(options.only.split(","))
    drawn = random.Random(options.seed).sample(mutants, min(options.draw, len(mutants)))  # noqa: S311 (no secret)
    survivors = 0
    with copied_tree() as tree:
        for name in _PRELOADED.split():
            importlib.import_module(name)
        tests = sorted({test for mutant in drawn for test in mutant.tests})
        traced = Trace(tree, tests, {mutant.file for mutant in drawn})
        for test in traced.failing:
            print(f"fails without a mutant: {test}", flush=True)
        for mutant in drawn:
            text = (tree / mutant.file).read_text(encoding="utf-8")
            tests = traced.tests_of(mutant)
            limit_s = 120 + 5 * sum(traced.seconds[test] for test in tests)
            failure = killed_by(tree, mutant, tests, limit_s) if tests else ""
            survivors += not failure
            outcome = f"killed    {mutant.described(text)}  by {failure}"
            survived = f"SURVIVED  {mutant.described(text)}  after {len(tests)} tests"
            print(outcome if failure else survived, flush=True)
    print(f"seed {options.seed}: {len(drawn) - survivors} of {len(drawn)} killed ({len(mutants):,} mutants in all)")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
