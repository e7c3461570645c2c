"""Files that name each other: pins and requirements, links and their targets, photos and their licenses."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mien.app import VERSION
from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"serve.txt": (), "gpu.txt": ("gpu",), "train.txt": ("train",), "test.txt": ("train", "trace", "test")}
TRAINING_ONLY = {"torch", "torchvision", "timm", "albumentations", "onnx", "opencv-python-headless", "scikit-learn"}
PLATFORMS = {
    f"{system}-{machine}-{python}": {
        "sys_platform": system,
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_system": {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}[system],
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64"))
    for python in ("3.11", "3.12", "3.13", "3.14")
}


def _tracked() -> list[Path]:
    result = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip("not a git checkout: what is tracked is unknown")
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


def _pins(name: str) -> list[Requirement]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [Requirement(line.split("--hash")[0].strip()) for line in text.splitlines() if line.strip()]


def _installed(pins: list[Requirement], platform: dict[str, str]) -> dict[str, str]:
    """Versions by name on one platform; several versions of a package are an error."""
    chosen: dict[str, str] = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate(platform):
            name = canonicalize_name(pin.name)
            assert name not in chosen, f"{name} is pinned twice"
            chosen[name] = str(pin.specifier).removeprefix("==")
    return chosen


def test_the_library_of_the_page_is_pinned_with_its_hash() -> None:
    folder = ROOT / "requirements" / "page"
    wanted, locked = (json.loads((folder / name).read_text()) for name in ("package.json", "package-lock.json"))
    packages = {name: package for name, package in locked["packages"].items() if name}
    for name, version in wanted["dependencies"].items():
        assert packages[f"node_modules/{name}"]["version"] == version, "an exact version, not a range"
    assert [name for name, package in packages.items() if not package["integrity"].startswith("sha512-")] == []


@pytest.mark.parametrize("name", EXTRAS)
def test_pins_cover_all_requirements_with_one_runtime_and_one_opencv_version(name: str) -> None:
    required = list(PROJECT["dependencies"])
    for extra in EXTRAS[name]:
        required += PROJECT["optional-dependencies"][extra]
    pins, requirements = _pins(name), [Requirement(text) for text in required]
    for place, platform in PLATFORMS.items():
        installed = _installed(pins, platform)
        for requirement in requirements:
            if requirement.marker is None or requirement.marker.evaluate(platform):
                version = installed.get(canonicalize_name(requirement.name))
                assert version, f"{requirement.name} has no pin on {place}: run `sh requirements/compile.sh`"
                assert requirement.specifier.contains(version), f"{requirement} is pinned to {version} on {place}"
        assert len({"onnxruntime", "onnxruntime-gpu"} & installed.keys()) == 1, place
        assert installed.get("opencv-python-headless", installed["opencv-python"]) == installed["opencv-python"], place


def test_serving_pins_contain_no_training_library() -> None:
    names = {canonicalize_name(pin.name) for pin in _pins("serve.txt")}
    assert not names & TRAINING_ONLY
    assert not [name for name in names if name.startswith("nvidia-")]


def test_training_serves_with_the_versions_of_serving() -> None:
    platform = PLATFORMS["linux-x86_64-3.11"]
    serving, testing = (_installed(_pins(name), platform) for name in ("serve.txt", "test.txt"))
    assert serving.items() <= testing.items()


def test_program_and_package_have_the_same_version() -> None:
    assert PROJECT["version"] == VERSION, "reinstall: pip install --no-deps --no-build-isolation --editable ."


def test_relative_links_in_documents_exist() -> None:
    for document in (path for path in _tracked() if path.suffix == ".md"):
        text = re.sub(r"```.*?```|<!--.*?-->", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)|<img[^>]+src=\"([^\"]+)\"", text):
            link = "".join(target)
            if not re.match(r"[a-z]+:", link):
                assert (document.parent / link).exists(), f"{document.relative_to(ROOT)}: {link}"


@pytest.mark.parametrize("page", ["reliability.md", "threat-model.md"])
def test_every_test_that_a_document_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"(?:::|`)(test_\w+)`", text))
    assert len(named) > 20
    assert named <= set(re.findall(r"^(?:async )?def (test_\w+)", tests, re.MULTILINE))


def test_every_sample_photo_states_its_license() -> None:
    table = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    for photo in (ROOT / "samples" / "photos").iterdir():
        assert f"`photos/{photo.name}`" in table, f"samples/README.md does not state the license of {photo.name}"
