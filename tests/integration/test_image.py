"""The container image: its pins, and, where buildah is, the image itself."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT


def test_the_cpu_image_installs_plain_onnx_runtime_of_the_pinned_version(tmp_path: Path) -> None:
    (command,) = re.findall(r"^RUN (sed .*> cpu\.txt) ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    subprocess.run(["sh", "-c", command.replace("cpu.txt", str(tmp_path / "cpu.txt"))], cwd=ROOT, check=True)
    serving, image = ((path).read_text() for path in (ROOT / "requirements" / "serve.txt", tmp_path / "cpu.txt"))
    version = re.search(r"^onnxruntime-gpu==([\d.]+)", serving, flags=re.MULTILINE)
    assert version is not None
    assert f"\nonnxruntime=={version[1]} \\\n    --hash=sha256:" in image
    assert "onnxruntime-gpu" not in image
    names = [set(re.findall(r"^([\w-]+)(?:\[\w+\])?==", text, flags=re.MULTILINE)) for text in (serving, image)]
    assert names[0] - names[1] == {"onnxruntime-gpu"}


@pytest.mark.soak
def test_the_image_is_built_and_passes_its_smoke_test() -> None:
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"building an image needs root, and {' and '.join(missing) or 'nothing else'}")
    subprocess.run(["sh", "deploy/build_image.sh"], cwd=ROOT, check=True)
