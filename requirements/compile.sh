#!/usr/bin/env sh
# Update the pins: `sh requirements/compile.sh` (requires `uv`). Exact versions and hashes, no URLs.
set -eu
cd "$(dirname "$0")/.."
pin() {
  out=$1; shift
  uv pip compile "$@" -c requirements/limits.in --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet -o "requirements/$out"
}
pin serve.txt pyproject.toml
pin gpu.txt pyproject.toml --extra gpu -c requirements/serve.txt
pin train.txt pyproject.toml --extra train -c requirements/serve.txt
pin test.txt pyproject.toml --extra train --extra test -c requirements/train.txt
pin build.txt --group pyproject.toml:build -c requirements/test.txt
