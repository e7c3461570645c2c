"""The wheel: one top-level name, used next to packages that have the names of the folders."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, output_of, sample_photo

RUNTIME = "app/static/page/runtime/ort.wasm.min.mjs"
USE_ANALYZER = """
import app, data, models, sys, training
from mien import Analyzer
(face,) = Analyzer(device="cpu").analyze(sys.argv[1])
print(face.label, app.MINE, data.MINE, sys.modules["mien.app"].__file__, "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the tracked and new files of the repository, without the links in mien/."""
    source = tmp_path_factory.mktemp("source") / "mien"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip("not a git checkout: what is in the repository is unknown")
    for name in filter(None, result.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    (source / RUNTIME).parent.mkdir(exist_ok=True)
    (source / RUNTIME).touch()  # as `make runtime` does; git ignores it
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(source.parent)]
    output_of(*command, cwd=source, timeout=100)
    (path,) = source.parent.glob("*.whl")
    return path


def test_the_wheel_has_one_top_level_name_with_all_modules_and_data_and_no_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {
        "mien",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
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


def test_the_wheel_is_used_next_to_packages_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # built above
    for name in ("app", "data", "models", "training", "tools", "benchmarks", "tests"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"MINE = 'my {name}'\n", encoding="utf-8")
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    env |= {"HOME": str(project), "MIEN_DEVICE": "cpu", "PYTHONPATH": str(site)}
    photo = str(sample_photo())
    label, *_, origin, torch = output_of(sys.executable, "-c", USE_ANALYZER, photo, cwd=project, env=env).split()
    assert (label, torch) == ("happiness", "False")
    assert Path(origin).is_relative_to(site)
    output_of(sys.executable, "-m", "mien", "label", photo, "--out", "out", cwd=project, env=env)
    assert "happiness" in (project / "out" / "labels.csv").read_text(encoding="utf-8")


@pytest.mark.registry
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_every_pin_has_a_wheel_for_every_python_and_platform() -> None:
    subprocess.run(["sh", "check.sh"], cwd=ROOT / "requirements", check=True)
