"""Size of a virtual environment, in total and by package.

    python -m benchmarks.environment_size .venv --limit-mb 1000

Prints the ten largest packages, in megabytes (10^6 bytes) of file contents, and exits with status 1 above the limit. It
uses the standard library only, so that it also runs in the environment it measures.
"""

import argparse
from pathlib import Path


def megabytes(path: Path) -> float:
    """Size of a file or folder; hard links count once."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = (file.stat() for file in files if not file.is_symlink())
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values()) / 1_000_000


def main(arguments: list[str] | None = None) -> None:
    """Print the table. Raises: SystemExit, above the limit or if the environment has no `site-packages`."""
    parser = argparse.ArgumentParser(description="Measure a virtual environment.")
    parser.add_argument("environment", type=Path)
    parser.add_argument("--limit-mb", type=float, default=float("inf"))
    options = parser.parse_args(arguments)
    packages = [entry for home in options.environment.glob("[lL]ib/**/site-packages") for entry in home.iterdir()]
    if not packages:
        raise SystemExit(f"{options.environment}: no site-packages found; expected a virtual environment such as .venv")
    total = megabytes(options.environment)
    print(f"{total:8.1f} MB  {options.environment}")
    for size, name in sorted(((megabytes(entry), entry.name) for entry in packages), reverse=True)[:10]:
        print(f"{size:8.1f} MB    {name}")
    if total > options.limit_mb:
        raise SystemExit(f"above the limit of {options.limit_mb:g} MB")


if __name__ == "__main__":
    main()
