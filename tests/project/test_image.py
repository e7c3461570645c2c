"""The container image, built and run without Docker."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from benchmarks.serving import free_port
from tests.support import ROOT, output_of, sample_photo
from tests.support.serving import wait_until_ready

# As the image's user on a read-only root with a /tmp in memory, without capabilities
ISOLATED = """
mount --bind {root} {root} && mount -o remount,bind,ro {root} && mount -t tmpfs -o size=64m,mode=1777 tmp {root}/tmp &&
mount -t proc proc {root}/proc && mount --bind /dev {root}/dev &&
exec chroot {root} setpriv --reuid {uid} --regid {gid} --clear-groups --bounding-set=-all --inh-caps=-all \
  --no-new-privs env -i -C /tmp {variables} {command}
"""


@pytest.mark.soak
def test_the_image_labels_a_photo_on_a_read_only_root_without_privileges(tmp_path: Path) -> None:
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"building an image needs root, and {' and '.join(missing) or 'nothing else'}")
    output_of("sh", "deploy/build_image.sh", cwd=ROOT)
    config = json.loads(output_of("buildah", "inspect", "--type", "image", "mien:cpu"))["Docker"]["config"]
    uid, gid = config["User"].split(":")
    container = output_of("buildah", "from", "--pull-never", "mien:cpu").strip()
    root = output_of("buildah", "mount", container).strip()

    def isolated(*command: str, port: int = 0) -> list[str]:
        variables = shlex.join([*config["Env"], f"MIEN_PORT={port}"])
        script = ISOLATED.format(
            root=shlex.quote(root), uid=uid, gid=gid, variables=variables, command=shlex.join(command)
        )
        return ["unshare", "--mount", "sh", "-ec", script]

    try:
        size = int(output_of("du", "--summarize", "--bytes", "--one-file-system", root).split()[0])
        assert size < 800_000_000
        written = subprocess.run(isolated("touch", "/opt/mien/x"), capture_output=True, check=False)
        assert b"Read-only file system" in written.stderr
        port, log = free_port(), tmp_path / "log"
        url = f"http://127.0.0.1:{port}"
        with log.open("wb") as file, subprocess.Popen(isolated(*config["Cmd"], port=port), stderr=file) as process:
            wait_until_ready(url, process, log)
            lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
            status = dict(line.split(":", 1) for line in lines)
            assert status["Uid"].split() == ["10001"] * 4
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
            headers, photo = {"content-type": "image/jpeg"}, sample_photo().read_bytes()
            body = httpx.post(f"{url}/v1/expressions", content=photo, headers=headers, timeout=30).json()
            assert body["detector"] == "yunet"
            assert [face["label"] for face in body["images"][0]["faces"]] == ["happiness"]
            health = config["Healthcheck"]["Test"][1:]
            for asked, healthy in ((port, True), (free_port(), False)):
                run = subprocess.run(isolated(*health, port=asked), capture_output=True, check=False)
                assert (run.returncode == 0) is healthy, asked
            process.terminate()
            assert process.wait(40) == 0
    finally:
        output_of("buildah", "rm", container)
