#!/usr/bin/env sh
# Check that every pin has a wheel for every supported Python and platform: `sh requirements/check.sh` (requires `uv`).
# Nothing is downloaded but the lists of files. macOS is checked as version 14: ONNX Runtime has no wheels for earlier ones.
set -eu
cd "$(dirname "$0")"
export MACOSX_DEPLOYMENT_TARGET=14.0
missing=0
for python in 3.11 3.12 3.13 3.14; do
  for platform in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-pc-windows-msvc aarch64-apple-darwin; do
    # the CUDA libraries of gpu.txt are not those of PyTorch
    for pins in "build.txt serve.txt test.txt train.txt" \
      gpu.txt; do
      uv pip compile $pins --no-deps --only-binary :all: --python-version "$python" --python-platform "$platform" \
        --quiet -o /dev/null || { echo "$pins: no wheels for Python $python on $platform" >&2; missing=1; }
    done
  done
done
exit $missing
