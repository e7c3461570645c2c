"""Smoke test of an image without Docker: `python3 deploy/smoke_test.py mien:cpu`, as root, with buildah installed.

Runs the image's command as its user on a read-only root with an in-memory /tmp and no capabilities, labels a photo,
runs the image's health check, and stops it.
"""

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PHOTO = Path(__file__).parents[1] / "samples" / "photos" / "astronaut.jpg"
MAX_BYTES = 800_000_000
ROOT_SETUP = """
mount --bind {root} {root} && mount -o remount,bind,ro {root} && mount -t tmpfs -o size=64m,mode=1777 tmp {root}/tmp &&
mount -t proc proc {root}/proc && mount --bind /dev {root}/dev &&
exec chroot {root} setpriv --reuid {uid} --regid {gid} --clear-groups --bounding-set=-all --inh-caps=-all \
  --no-new-privs env -i -C /tmp {env} {command}
"""


def output(*command: str) -> str:
    """Standard output of a command that succeeds."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def check(passed: bool, what: str) -> None:
    """Report one result; the first failure ends the test."""
    print("ok  " if passed else "FAIL", what)
    if not passed:
        sys.exit(1)


@contextlib.contextmanager
def mounted(image: str) -> Iterator[str]:
    """Folder with the image's files."""
    container = output("buildah", "from", "--pull-never", image)
    try:
        yield output("buildah", "mount", container)
    finally:
        output("buildah", "rm", container)


def isolated(root: str, config: dict, command: list[str], **environment: str) -> list[str]:
    """The command line that runs a command of the image as the image says, without privileges."""
    uid, gid = config["User"].split(":")
    env = config["Env"] + [f"{name}={value}" for name, value in environment.items()]
    quoted = {"root": shlex.quote(root), "env": shlex.join(env), "command": shlex.join(command)}
    return ["unshare", "--mount", "sh", "-ec", ROOT_SETUP.format(uid=uid, gid=gid, **quoted)]


def free_port() -> str:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def get(url: str, body: bytes | None = None) -> dict:
    """The JSON of a response."""
    request = urllib.request.Request(url, body, {"Content-Type": "image/jpeg"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is not for this machine
    with direct.open(request, timeout=30) as response:
        return json.load(response)


def wait_until_ready(url: str, process: subprocess.Popen) -> dict:
    """What `/ready` says, within two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            return get(f"{url}/ready")
        time.sleep(0.2)
    sys.exit("FAIL the service did not become ready")


def status(pid: int) -> dict[str, str]:
    """Fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def main(image: str) -> None:
    """Run every check."""
    config = json.loads(output("buildah", "inspect", "--type", "image", image))["Docker"]["config"]
    port, health = free_port(), config["Healthcheck"]["Test"][1:]
    url = f"http://127.0.0.1:{port}"
    with mounted(image) as root:
        size = int(output("du", "--summarize", "--bytes", "--one-file-system", root).split()[0])
        check(size < MAX_BYTES, f"{size / 1e6:.0f} MB, at most {MAX_BYTES / 1e6:.0f}")
        touch = subprocess.run(isolated(root, config, ["touch", "/opt/mien/x"]), capture_output=True, check=False)
        check(b"Read-only file system" in touch.stderr, "the root is read-only")
        with subprocess.Popen(isolated(root, config, config["Cmd"], MIEN_PORT=port)) as process:
            ready = wait_until_ready(url, process)
            check(ready["detector"] == "yunet", f"ready with {ready['model']}, {ready['precision']}, YuNet")
            now = status(process.pid)
            check(now["Uid"].split() == ["10001"] * 4, "runs as user 10001")
            check(int(now["CapEff"], 16) == int(now["CapBnd"], 16) == 0, "has no capabilities")
            faces = get(f"{url}/v1/expressions", PHOTO.read_bytes())["images"][0]["faces"]
            check([face["label"] for face in faces] == ["happiness"], "labels a photo")
            for asked, healthy in ((port, True), (free_port(), False)):
                run = subprocess.run(isolated(root, config, health, MIEN_PORT=asked), capture_output=True, check=False)
                check(
                    (run.returncode == 0) is healthy, f"the health check follows MIEN_PORT: {asked} healthy={healthy}"
                )
            process.terminate()
            check(process.wait(40) == 0, "SIGTERM ends it with status 0")


if __name__ == "__main__":
    main(sys.argv[1])
