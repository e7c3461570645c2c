"""Mutants of the core: small defects of one expression each."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
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
EXECUTED: Final = "_executed"  # name of the function that marked files call
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
    "description",
    "examples",
    "title",
    "encoding",
    "strict",
    "name",
    "stacklevel",
    "exc_info",
    "check",
    "maxsize",
}


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
    """The text of a file whose functions report each statement before they execute it."""
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTION)]
    for node in {node: None for function in functions for node in ast.walk(function)}:
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                docstring = [statements.pop(0)] if isinstance(node, _FUNCTION) and ast.get_docstring(node) else []
                reports = [ast.parse(f"{EXECUTED}('{file}:{statement.lineno}')").body[0] for statement in statements]
                pairs = zip(reports, statements, strict=True)
                setattr(node, name, [*docstring, *(part for pair in pairs for part in pair)])
    # processes that do not record have no such function
    tree.body.insert(1, ast.parse(f"{EXECUTED} = getattr(__import__('builtins'), '{EXECUTED}', id)").body[0])
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
