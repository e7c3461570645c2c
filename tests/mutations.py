"""Mutation tests: small defects, drawn at random, that the tests of their part should notice.

    python -m tests.mutations                     # 40 mutants, drawn with the date as seed
    python -m tests.mutations --draw 10 --seed 7  # others
    python -m tests.mutations --only app/service  # of files that begin so; several with commas

A mutant changes one comparison, operator, condition, argument, number or truth value of the core, or leaves a call out.
It is applied to a temporary copy of the checkout, and survives if all tests that call its function pass; a run without
mutants records which these are. A survivor is equivalent, needs a test, or shows code that nobody needs. The exit code
is 1 if one survives.
"""

import argparse
import ast
import builtins
import os
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
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
# files and folders to draw from, and the tests of each
CORE: Final = {
    "data/contract": ("tests/data", "tests/service/test_expressions.py"),
    "data/quality.py": ("tests/data", "tests/inference"),
    "models/network.py": ("tests/models", "tests/training"),
    "training/train.py": ("tests/training",),
    "training/weights.py": ("tests/training",),
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
    "app/service": ("tests/service", "tests/api/test_surfaces.py"),
}
_EXECUTED: Final = "_executed"  # name of the record in traced files
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
_NO_WARNING = "-Wignore::pytest.PytestAssertRewriteWarning"  # of this file, which records in all processes
_TRACE = "MUTATIONS_TRACE"  # variable with the file to which traced processes append


@dataclass(frozen=True, slots=True)
class Mutant:
    """A part of a file, by offsets in bytes; what replaces it; its function, or nothing outside of functions."""

    file: str
    start: int
    end: int
    new: str
    function: str
    tests: tuple[str, ...]

    def text_in(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]

    def described(self, text: bytes) -> str:
        line, old = text.count(b"\n", 0, self.start) + 1, text[self.start : self.end].decode()
        return f"{self.file}:{line}: {' '.join(old.split())}  ->  {self.new}"


def mutants_of(file: str, tests: tuple[str, ...]) -> list[Mutant]:
    """All mutants of a file: one changed expression each."""
    text = (ROOT / file).read_bytes()
    starts, found = [0, *accumulate(map(len, text.splitlines(keepends=True)))], []
    for node, field, line in _expressions(ast.parse(text), 0):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        function = f"{file}:{line}" if line else ""
        found += [Mutant(file, start, end, f"({ast.unparse(new)})", function, tests) for new in _changed(node, field)]
    return found


def traced(file: str, text: bytes) -> str:
    """The text of a file whose functions look themselves up in the record."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTION):
            after_docstring = int(ast.get_docstring(node) is not None)
            node.body.insert(after_docstring, ast.parse(f"{_EXECUTED}['{file}:{node.lineno}']").body[0])
    # processes that do not record have none
    default = "__import__('collections').defaultdict(int)"
    tree.body.insert(1, ast.parse(f"{_EXECUTED} = getattr(__import__('builtins'), '{_EXECUTED}', {default})").body[0])
    return ast.unparse(tree)


def _expressions(node: ast.AST, line: int) -> Iterator[tuple[Any, str, int]]:
    """Expressions that are behavior, each with its field in its parent and the line of its function."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in {"annotation", "returns", "decorator_list"}:
                continue
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr) or getattr(child, "name", "") == "__repr__":
                continue
            if isinstance(child, ast.keyword) and child.arg in _NO_ARGUMENTS:
                continue
            called = node.lineno if isinstance(node, _FUNCTION) and name == "body" else line
            if isinstance(child, ast.stmt):
                is_simple = not any(isinstance(part, ast.stmt) for part in ast.walk(child) if part is not child)
                if is_simple and _NO_BEHAVIOR.search(ast.unparse(child)):
                    continue
            if isinstance(child, ast.expr):
                yield child, f"{type(node).__name__}.{name}", called
            yield from _expressions(child, called)


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
    """A copy of the checkout, in which the released models are links."""
    with tempfile.TemporaryDirectory(prefix="mutations-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder).resolve() / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=_NOT_COPIED)
        (tree / "models/artifacts").symlink_to(ROOT / "models/artifacts")
        # of its own, because runs record their commit
        for command in ("init -q", "add .", "-c user.name=tests -c user.email=tests@localhost commit -qm copy"):
            subprocess.run(["git", *command.split()], cwd=tree, check=True)
        yield tree


class Record(dict[str, None]):
    """Functions that this process has called in this phase of a test; a new one is appended to a file.

    A look-up of a known function calls none, as some tests count calls.
    """

    def __init__(self) -> None:
        self.file = os.open(os.environ[_TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __missing__(self, function: str) -> None:
        self[function] = None
        os.write(self.file, f"{function}\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\n".encode())


def pytest_runtest_setup() -> None:
    """In the traced run, each phase of a test begins with an empty record."""
    getattr(builtins, _EXECUTED).clear()


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


class Trace:
    """Seconds of each test that passes without a mutant, and the tests that call each function of the core."""

    def __init__(self, tree: Path, tests: Sequence[str], files: Iterable[str]) -> None:
        calls, site = tree.with_name("calls"), tree.with_name("site")
        site.mkdir()
        start = f"import builtins\nfrom tests.mutations import Record\nbuiltins.{_EXECUTED} = Record()\n"
        (site / "sitecustomize.py").write_text(start, encoding="utf-8")
        texts = {tree / name: (tree / name).read_bytes() for name in files}
        for path, text in texts.items():
            path.write_text(traced(str(path.relative_to(tree)), text), encoding="utf-8")
        options = ["-ptests.mutations", "-vv", "--durations=0", "--durations-min=0"]
        environment = {_TRACE: str(calls), "PYTHONPATH": f"{tree}{os.pathsep}{site}"}
        output = run_tests(tree, *options, *tests, timeout_s=7200, **environment)[1]
        for path, text in texts.items():
            path.write_bytes(text)
        self.seconds = dict.fromkeys(re.findall(r"^(tests/\S+::.+?) PASSED", output, re.MULTILINE), 0.0)
        for seconds, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(tests/.+)", output, re.MULTILINE):
            if test in self.seconds:
                self.seconds[test] += float(seconds)
        self.failing = re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", output, re.MULTILINE)
        self.by_function: dict[str, set[str]] = defaultdict(set)
        for line in calls.read_text(encoding="utf-8").splitlines():
            function, _, test_and_phase = line.partition("\t")
            test, _, phase = test_and_phase.rpartition(" ")
            # other tests may use what this one set up
            self.by_function[function].add(test if phase == "(call)" else test.partition("::")[0])

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that call the function of a mutant, those of the quickest file first."""
        callers = self.by_function[mutant.function] if mutant.function else {""}
        chosen = callers - {""} or (callers and set(mutant.tests))
        file_s, tests = defaultdict[str, float](float), list[str]()
        for test, seconds in self.seconds.items():
            file = test.partition("::")[0]
            file_s[file] += seconds
            tests += [test] if chosen & {test, file, file.rpartition("/")[0]} else []
        return sorted(tests, key=lambda test: file_s[test.partition("::")[0]])


def run_tests(tree: Path, *arguments: str, timeout_s: float, **environment: str) -> tuple[int, str]:
    """Run tests of a tree. Returns the exit status and the output."""
    output, fixed = tree.with_name("output"), ["-q", "-rfE", "--tb=no", "-pno:cacheprovider", _NO_WARNING]
    command = [sys.executable, "-m", "pytest", *fixed, f"--basetemp={tree.with_name('tests')}", *arguments]
    # the time of a compiled file would not tell it from its mutation
    environment = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"} | environment
    with (
        output.open("w") as file,
        subprocess.Popen(
            command, cwd=tree, env=os.environ | environment, stdout=file, stderr=file, start_new_session=True
        ) as process,
    ):
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and servers that a failed test leaves
    return process.returncode, output.read_text(encoding="utf-8", errors="replace")


def killed_by(tree: Path, mutant: Mutant, tests: Sequence[str], timeout_s: float) -> str:
    """Apply a mutant, run tests until one fails, and undo it. Returns the failure, or nothing."""
    path = tree / mutant.file
    text = path.read_bytes()
    path.write_bytes(mutant.text_in(text))
    try:
        code, output = run_tests(tree, "-x", *tests, timeout_s=timeout_s)
    finally:
        path.write_bytes(text)
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
        tests = sorted({test for mutant in drawn for test in mutant.tests})
        trace = Trace(tree, tests, {mutant.file for mutant in drawn})
        for test in trace.failing:
            print(f"fails without a mutant: {test}", flush=True)
        for mutant in drawn:
            described = mutant.described((tree / mutant.file).read_bytes())
            tests = trace.tests_of(mutant)
            limit_s = 120 + 5 * sum(trace.seconds[test] for test in tests)
            failure = killed_by(tree, mutant, tests, limit_s) if tests else ""
            survivors += not failure
            survived = f"SURVIVED  {described}  after {len(tests)} tests"
            print(f"killed    {described}  by {failure}" if failure else survived, flush=True)
    print(f"seed {options.seed}: {len(drawn) - survivors} of {len(drawn)} killed ({len(mutants):,} mutants in all)")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
