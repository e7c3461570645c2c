"""The wheel has what the program needs; release.yml installs it and labels with it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, output_of

RUNTIME = "app/static/page/runtime/ort.wasm.min.mjs"


def test_the_wheel_has_one_top_level_name_with_all_modules_and_data_and_no_link(tmp_path: Path) -> None:
    """It is built from the tracked and new files of the repository, without the links in mien/."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what is in the repository is unknown")
    listed = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / RUNTIME).parent.mkdir(exist_ok=True)
    (tmp_path / RUNTIME).touch()  # as `make runtime` does; git ignores it
    output_of(sys.executable, "-m", "hatchling", "build", "--target", "wheel", cwd=tmp_path, timeout=100)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"
    assert {name.split("/")[0] for name in names} == {"mien", info}
    expected = {
        f"mien/{path.relative_to(ROOT).as_posix()}"
        for folder in ("app", "data", "models", "training")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in {".py", ".html", ".js", ".css", ".yaml", ".json", ".onnx", ".wasm"}
        if "runtime" not in path.relative_to(ROOT).parts[2:4]
    }
    assert {"mien/__init__.py", "mien/__main__.py", "mien/py.typed", f"mien/{RUNTIME}"} <= names
    assert expected <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("mien/mien")]


@pytest.mark.registry
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_every_pin_has_a_wheel_for_every_python_and_platform() -> None:
    subprocess.run(["sh", "check.sh"], cwd=ROOT / "requirements", check=True)
