"""Import rules: imports point down, and the contract has few dependencies."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

PACKAGES = ("app", "data", "models", "training")
ALLOWED_IN_CONTRACT = {"cv2", "numpy", "PIL", "mien.data", "pillow_heif"}  # pillow_heif: optional, where installed


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)


def _copy_of_the_packages(folder: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", folder)
    ignored = shutil.ignore_patterns("artifacts", "static", "__pycache__")
    for package in (*PACKAGES, "benchmarks", "tools"):
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    shutil.copytree(ROOT / "mien", folder / "mien", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_imports_point_down() -> None:
    result = _lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


def test_an_indirect_import_of_torch_by_serving_is_detected(tmp_path: Path) -> None:
    tree = _copy_of_the_packages(tmp_path)
    (tree / "models" / "shortcut.py").write_text("import torch\n", encoding="utf-8")
    with (tree / "app" / "__init__.py").open("a", encoding="utf-8") as package:
        package.write("\nimport mien.models.shortcut\n")
    result = _lint_imports(tree)
    assert result.returncode == 1
    assert "mien.models.shortcut -> torch" in result.stdout


def test_training_and_serving_do_not_import_each_other(tmp_path: Path) -> None:
    tree = _copy_of_the_packages(tmp_path)
    (tree / "training" / "shortcut.py").write_text("import mien.app.settings\n", encoding="utf-8")
    result = _lint_imports(tree)
    assert result.returncode == 1
    assert "mien.training.shortcut -> mien.app.settings" in result.stdout


def test_contract_needs_only_numpy_opencv_and_pillow() -> None:
    for path in sorted((ROOT / "data" / "contract").glob("*.py")):
        beyond = _imported_packages(path) - ALLOWED_IN_CONTRACT - sys.stdlib_module_names
        assert not beyond, f"{path.name} imports {beyond}"


def _imported_packages(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    from_ = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {".".join(name.split(".")[: 2 if name.startswith("mien.") else 1]) for name in plain | from_}
