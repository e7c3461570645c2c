"""The notebooks run from the first to the last cell."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute a notebook in a folder with the samples and the models of the clone; returns the outputs of its cells."""
    for name in ("nbclient", "nbformat", "ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    import nbclient
    import nbformat

    for name in ("samples", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "mien").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mien "$@"\n', encoding="utf-8")
    (tmp_path / "mien").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def run(name: str) -> list[Any]:
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", ())]

    return run


def _figures(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", ()) for output in outputs)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_notebook_goes_from_a_folder_to_a_plot(execute: Any) -> None:
    outputs = execute("folder_to_plot.ipynb")
    assert _figures(outputs) >= 1
    assert any("astronaut.jpg" in output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_notebook_draws_the_attention_of_the_released_network(execute: Any) -> None:
    outputs = execute("attention.ipynb")
    assert _figures(outputs) == 6
    assert any("2 faces; 3 blocks of 3 heads; 7 x 7 patches" in output.get("text", "") for output in outputs)
