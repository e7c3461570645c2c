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
pin heic.txt pyproject.toml --extra heic -c requirements/serve.txt
pin triton.txt pyproject.toml --extra triton -c requirements/serve.txt
pin trace.txt pyproject.toml --extra trace -c requirements/serve.txt
pin ray.txt pyproject.toml --extra ray -c requirements/serve.txt
pin store.txt pyproject.toml --extra store -c requirements/serve.txt
pin raw.txt pyproject.toml --extra raw -c requirements/serve.txt
pin train.txt pyproject.toml --extra train -c requirements/serve.txt
pin agreement.txt pyproject.toml --extra agreement -c requirements/train.txt
pin test.txt pyproject.toml --extra train --extra triton --extra trace --extra test -c requirements/train.txt -c requirements/ray.txt -c requirements/store.txt -c requirements/agreement.txt
pin consumers.txt pyproject.toml --extra consumers --extra heic -c requirements/test.txt
pin build.txt --group pyproject.toml:build -c requirements/test.txt
