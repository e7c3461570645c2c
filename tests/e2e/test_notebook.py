"""The notebooks run from the first to the last cell."""

import os
import sys
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebooks_run_and_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e .[notebook]")
    import nbformat

    shown = {"folder_to_plot": (1, "astronaut.jpg"), "attention": (6, "2 faces; 3 blocks of 3 heads; 7 x 7 patches")}
    for folder in ("samples", "models"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # with the program `mien`
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for name, (figures, text) in shown.items():
        notebook = nbformat.read(ROOT / "docs" / "notebooks" / f"{name}.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        assert sum("image/png" in output.get("data", ()) for output in outputs) >= figures, name
        assert any(text in output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs)
