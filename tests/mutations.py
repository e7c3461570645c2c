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
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import ModuleType

from tests.mutants import EXECUTED, ROOT, Mutant, all_mutants, marked

_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "node_modules", "artifacts", "out", "site", "dist"
)
_PRELOADED = "albumentations cv2 fastapi httpx hypothesis onnx onnxruntime pytest timm torch typer"
_NO_WARNING = "-Wignore::pytest.PytestAssertRewriteWarning"  # of plugins imported before
_TRACE = "MUTATIONS_TRACE"  # variable with the file to which traced processes append


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


def record() -> None:
    """Let marked files of the core append to a file which statements this process executes in which test."""
    file, seen = os.open(os.environ[_TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT), set[tuple[str, str]]()

    def executed(statement: str) -> None:
        if (key := (os.environ.get("PYTEST_CURRENT_TEST", ""), statement)) not in seen:
            seen.add(key)
            os.write(file, f"{statement}\t{key[0]}\n".encode())

    vars(builtins)[EXECUTED] = executed


class Trace:
    """Seconds of each test that passes without a mutant, and the tests that execute each statement of the core."""

    def __init__(self, tree: Path, tests: Sequence[str], files: Iterable[str]) -> None:
        file, site = tree.with_name("trace"), tree.with_name("site")
        site.mkdir()
        (site / "sitecustomize.py").write_text("from tests.mutations import record; record()\n", encoding="utf-8")
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
    if is_traced:
        record()
    fixed = ["-q", "-rfE", "--tb=no", "-pno:cacheprovider", _NO_WARNING, f"--basetemp={output.with_name('tests')}"]
    sys.exit(pytest.main([*fixed, *arguments]))


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
