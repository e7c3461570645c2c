"""Size of a virtual environment, in total and by package.

    python -m benchmarks.environment_size .venv --limit-mb 1000

Prints a table and exits with status 1 above the limit. It uses the standard library only, so that it also runs in the
environment it measures.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class EnvironmentSize:
    """Megabytes (10^6 bytes) of file contents, hard links counted once."""

    total_mb: float
    packages_mb: dict[str, float]


def measure(environment: Path) -> EnvironmentSize:
    """Measure an environment. Raises: FileNotFoundError, if it has no `site-packages`."""
    homes = sorted(environment.glob("lib/python3.*/site-packages")) or sorted(environment.glob("Lib/site-packages"))
    if not homes:
        raise FileNotFoundError(f"{environment}: no site-packages found; expected a virtual environment such as .venv")
    sizes = {entry.name: _bytes_below(entry) / MEGABYTE for entry in homes[0].iterdir()}
    heaviest_first = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    return EnvironmentSize(_bytes_below(environment) / MEGABYTE, heaviest_first)


def _bytes_below(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = (file.stat() for file in files if not file.is_symlink())
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())


def main(arguments: list[str] | None = None) -> int:
    """Print the table; returns 1 above the limit, else 0."""
    parser = argparse.ArgumentParser(description="Measure a virtual environment.")
    parser.add_argument("environment", type=Path)
    parser.add_argument("--limit-mb", type=float, default=float("inf"))
    parser.add_argument("--rows", type=int, default=10, help="packages to list")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    size = measure(options.environment)
    print(f"{size.total_mb:8.1f} MB  {options.environment}")
    for name, megabytes in list(size.packages_mb.items())[: options.rows]:
        print(f"{megabytes:8.1f} MB    {name}")
    if options.json:
        options.json.write_text(json.dumps(asdict(size), indent=2) + "\n", encoding="utf-8")
    if size.total_mb > options.limit_mb:
        print(f"above the limit of {options.limit_mb:g} MB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
