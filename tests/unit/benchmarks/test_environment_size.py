"""The environment-size benchmark."""

import json
from pathlib import Path

import pytest

from benchmarks.environment_size import main, measure


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    for name, size in {"light": 1_000_000, "heavy": 3_000_000}.items():
        (packages / name).mkdir(parents=True)
        (packages / name / "code.bin").write_bytes(bytes(size))
    return tmp_path / "env"


def test_packages_are_listed_heaviest_first(environment: Path) -> None:
    size = measure(environment)
    assert size.total_mb == 4.0
    assert list(size.packages_mb.items()) == [("heavy", 3.0), ("light", 1.0)]


def test_hard_links_count_once(environment: Path) -> None:
    light = environment / "lib" / "python3.11" / "site-packages" / "light"
    (light / "again.bin").hardlink_to(light / "code.bin")
    assert measure(environment).total_mb == 4.0


def test_exceeding_the_limit_fails_the_command(environment: Path, tmp_path: Path) -> None:
    results = tmp_path / "size.json"
    assert main([str(environment), "--limit-mb", "4", "--json", str(results)]) == 0
    assert json.loads(results.read_text(encoding="utf-8"))["total_mb"] == 4.0
    assert main([str(environment), "--limit-mb", "3.9"]) == 1


def test_a_folder_that_is_not_an_environment_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no site-packages"):
        measure(tmp_path)
