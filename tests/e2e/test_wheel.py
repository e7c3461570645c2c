"""The wheel: one top-level name, the same from repository and sdist, used next to packages of the same names."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from benchmarks.background import free_port
from mien.app import VERSION
from tests.support import ROOT, output_of, sample_photo

OWN_PACKAGES = ("app", "data", "models", "training", "tools", "benchmarks", "tests")
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
    return _build(source, "wheel")


def _build(source: Path, target: str) -> Path:
    built = source.parent / target
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(built)]
    output_of(*command, cwd=source, timeout=100)
    (path,) = built.iterdir()
    return path


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def test_the_wheel_has_one_top_level_name_with_all_modules_and_data_and_no_link(wheel: Path) -> None:
    assert {name.split("/")[0] for name in _names(wheel)} == {"mien", f"mien-{VERSION}.dist-info"}
    names = {name for name in _names(wheel) if name.startswith("mien/")}
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


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = _build(wheel.parents[1] / "mien", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # noqa: S202  # built above
    (source,) = tmp_path.iterdir()
    assert _names(_build(source, "wheel")) == _names(wheel)


def _project(folder: Path) -> Path:
    """A folder with packages of its own that have the names of Mien's folders."""
    for name in OWN_PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"MINE = 'my {name}'\n", encoding="utf-8")
    return folder


def _use(python: Path, project: Path) -> None:
    """Label with the API, the command line and the service."""
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    env |= {"HOME": str(project), "MIEN_DEVICE": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    photo = str(sample_photo())

    def run(*arguments: str) -> str:
        return output_of(python, *arguments, cwd=project, env=env, timeout=100)

    label, *_, origin, torch = run("-c", USE_ANALYZER, photo).split()
    assert (label, torch) == ("happiness", "False")
    assert Path(origin).is_relative_to(python.parents[1])
    program = python.with_name("mien.exe" if os.name == "nt" else "mien")
    assert run(str(program), "--version").split() == ["mien", VERSION]
    run(str(program), "label", photo, "--out", "out")
    assert "happiness" in (project / "out" / "labels.csv").read_text(encoding="utf-8")
    port = free_port()
    server = subprocess.Popen([python, "-m", "mien", "serve", "--port", str(port)], cwd=project, env=env)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=8)) as client:
            response = client.post("/v1/expressions", files={"images": sample_photo().read_bytes()}, timeout=60)
        assert response.json()["images"][0]["faces"][0]["label"] == "happiness"
    finally:
        server.terminate()
        assert server.wait(30) == 0


def test_the_wheel_is_used_next_to_packages_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("[lL]ib/**/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # noqa: S202  # built above
    # the installed packages of the tests, except their editable mien
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in filter(lambda path: path.endswith("site-packages"), sys.path):
        for entry in Path(folder).iterdir():
            if "mien" not in entry.name and entry.suffix != ".pth" and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    (site / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    scripts = Path(sysconfig.get_path("scripts", vars={"base": str(environment), "platbase": str(environment)}))
    python = scripts / Path(sys.executable).name
    entry_point = f"#!{python}\nimport sys\nfrom mien.app.cli import main\nsys.exit(main())\n"
    (scripts / "mien").write_text(entry_point, encoding="utf-8")
    (scripts / "mien").chmod(0o755)
    _use(python, _project(tmp_path / "project"))


@pytest.mark.registry
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_every_pin_has_a_wheel_for_every_python_and_platform() -> None:
    subprocess.run(["sh", "check.sh"], cwd=ROOT / "requirements", check=True)
