"""The notebook runs from the first to the last cell."""

import os
import sys
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebook_goes_from_a_folder_to_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nbclient", "nbformat", "ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    import nbclient
    import nbformat

    (tmp_path / "samples").symlink_to(ROOT / "samples")
    (tmp_path / "mien").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mien "$@"\n', encoding="utf-8")
    (tmp_path / "mien").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(ROOT / "docs" / "folder_to_plot.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert any("astronaut.jpg" in output.get("data", {}).get("text/plain", "") for output in outputs)
