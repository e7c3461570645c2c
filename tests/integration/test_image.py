"""The container image: its pins, and, where buildah is, the image itself."""

import os
import shutil
import subprocess

import pytest

from tests.support import ROOT


@pytest.mark.soak
def test_the_image_is_built_and_passes_its_smoke_test() -> None:
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"building an image needs root, and {' and '.join(missing) or 'nothing else'}")
    subprocess.run(["sh", "deploy/build_image.sh"], cwd=ROOT, check=True)
