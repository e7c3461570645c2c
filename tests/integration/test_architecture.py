"""Dependencies of the contract; import-linter holds the other import rules."""

import ast
import sys
from pathlib import Path

from tests.support import ROOT

ALLOWED_IN_CONTRACT = {"cv2", "numpy", "PIL", "mien.data", "pillow_heif"}  # pillow_heif: optional, where installed


def test_contract_needs_only_numpy_opencv_and_pillow() -> None:
    for path in sorted((ROOT / "data" / "contract").glob("*.py")):
        beyond = _imported_packages(path) - ALLOWED_IN_CONTRACT - sys.stdlib_module_names
        assert not beyond, f"{path.name} imports {beyond}"


def _imported_packages(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    from_ = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {".".join(name.split(".")[: 2 if name.startswith("mien.") else 1]) for name in plain | from_}
