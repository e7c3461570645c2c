"""The notebooks run from the first to the last cell."""

import os
import sys
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "figures", "text"),
    [
        ("folder_to_plot.ipynb", 1, "astronaut.jpg"),
        ("attention.ipynb", 6, "2 faces; 3 blocks of 3 heads; 7 x 7 patches"),
    ],
)
def test_a_notebook_runs_and_draws(
    name: str, figures: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("nbclient", "nbformat", "ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")
    import nbclient
    import nbformat

    for folder in ("samples", "models"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "mien").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mien "$@"\n', encoding="utf-8")
    (tmp_path / "mien").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / name, as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", ()) for output in outputs) >= figures
    assert any(text in output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs)
