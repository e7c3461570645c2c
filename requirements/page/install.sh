#!/usr/bin/env sh
# Fetch ONNX Runtime Web into a folder: sh requirements/page/install.sh FOLDER
# npm compares the package with its hash in package-lock.json. The page runs models with it in the browser (docs/webcam.md).
set -eu
pins=$(cd "$(dirname "$0")" && pwd)
folder=$1
command -v npm >/dev/null || { echo "npm was not found: install Node.js, then run this again." >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$pins/package.json" "$pins/package-lock.json" "$work"
npm ci --prefix "$work" --ignore-scripts --no-audit --no-fund --loglevel=error
mkdir -p "$folder"
# the last one tells that all are there
for name in ort-wasm-simd-threaded.mjs ort-wasm-simd-threaded.wasm ort.wasm.min.mjs; do
  cp "$work/node_modules/onnxruntime-web/dist/$name" "$folder"
done
