"""One base class for all errors of the project."""

import ast
from collections.abc import Iterator
from pathlib import Path

from mien.data.errors import MienError

_ROOT = Path(__file__).resolve().parents[3]
_BUILTIN = {"Exception", "ValueError", "RuntimeError", "OSError", "TypeError", "KeyError"}


def _error_classes() -> Iterator[tuple[str, set[str]]]:
    for package in ("app", "benchmarks", "data", "models", "tools", "training"):
        for path in (_ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield f"{path.relative_to(_ROOT)}:{node.name}", {ast.unparse(base) for base in node.bases}


def test_every_public_error_derives_from_the_one_base_class() -> None:
    classes = list(_error_classes())
    apart = [
        name
        for name, bases in classes
        if bases & _BUILTIN and MienError.__name__ not in bases and not name.endswith(f":{MienError.__name__}")
    ]
    assert sum(MienError.__name__ in bases for _, bases in classes) >= 10, "the walk finds the errors"
    assert [name for name in apart if not name.rpartition(":")[2].startswith("_")] == []
