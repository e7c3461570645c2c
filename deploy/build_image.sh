#!/usr/bin/env sh
# Build the `cpu` image without Docker: `sh deploy/build_image.sh [OPTION of buildah build]...`
# Needs Debian or Ubuntu, root, and `apt-get install buildah debootstrap`. The base is Debian with its Python instead of
# Docker's Python image. Where MIEN_MODELS_DIR holds YuNet's file, the image takes it from there instead of the network.
set -eu
cd "$(dirname "$0")/.."
yunet=face_detection_yunet_2023mar.onnx
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root"
ln -s python3 "$root/usr/bin/python"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
if [ -f "${MIEN_MODELS_DIR:-}/$yunet" ]; then
  install -D --mode 644 "$MIEN_MODELS_DIR/$yunet" "$root/opt/models/$yunet"
fi

base=$(buildah from scratch)
buildah copy --quiet "$base" "$root" /
buildah commit --quiet --rm "$base" mien-base
buildah build --isolation chroot --network host --format docker --build-arg BASE=localhost/mien-base --target cpu --tag mien:cpu "$@" .
