"""The environment-size benchmark."""

from pathlib import Path

import pytest

from benchmarks.environment_size import main


def test_packages_are_listed_heaviest_first_and_a_size_above_the_limit_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, size in {"light": 1_000_000, "heavy": 3_000_000}.items():
        (packages / name).mkdir(parents=True)
        (packages / name / "code.bin").write_bytes(bytes(size))
    (packages / "light" / "again.bin").hardlink_to(packages / "light" / "code.bin")
    main([str(tmp_path), "--limit-mb", "4"])
    words = capsys.readouterr().out.split()
    assert (words[0], words[3:]) == ("4.0", ["3.0", "MB", "heavy", "1.0", "MB", "light"])
    with pytest.raises(SystemExit, match="above the limit"):
        main([str(tmp_path), "--limit-mb", "3.9"])
    with pytest.raises(SystemExit, match="no site-packages"):
        main([str(packages)])
