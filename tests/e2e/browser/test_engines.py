"""The page in Firefox and in WebKit, the engine of Safari: the service, local mode, and the sample, which repeats.

Firefox is driven by WebDriver BiDi and WebKitGTK by WebDriver; these are engines that Playwright would download.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from benchmarks.serving import free_port
from tests.e2e.browser.conftest import serving
from tests.e2e.browser.test_local import needs_runtime
from tests.support import eventually, is_listening

# WebKitGTK sometimes loses the result of a script, or hangs, so that its driver does not answer: in 3 of 20 runs
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.flaky(reruns=2, only_rerun=[httpx.ReadTimeout, "Could not parse script result"]),
    needs_runtime,
]
CLICK = "document.getElementById('{}').click()"
LABEL = "document.querySelector('#faces .face:not(.away) .face-label')?.textContent"
POSITION_S = "document.getElementById('video').currentTime"
# A function that runs an expression in the page, and returns its value: a number, a text, a truth value or nothing.
Script = Callable[[str], Any]


@contextmanager
def _running(*commands: list[str], port: int, **environment: str) -> Iterator[None]:
    """Run programs, of which the last one listens at a port."""
    with ExitStack() as stack:
        for command in commands:
            quiet = subprocess.DEVNULL
            own: dict[str, Any] = {"env": os.environ | environment, "start_new_session": True}
            process = subprocess.Popen(command, stdout=quiet, stderr=quiet, **own)
            stack.callback(process.wait)
            # with the browser that a driver started, also one that does not answer
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        eventually(lambda: is_listening(port))
        yield


@contextmanager
def firefox(folder: Path, url: str) -> Iterator[Script]:
    """Open an address in Firefox, with its profile in `folder`; fails if the page logged an error."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("Firefox is not installed: `apt-get install firefox-esr`")
    (folder / "user.js").write_text('user_pref("media.autoplay.default", 0);', encoding="utf-8")
    port, numbers = free_port(), itertools.count(1)
    errors: list[str] = []
    command = [program, "--headless", "--profile", str(folder), f"--remote-debugging-port={port}"]
    with _running(command, port=port), connect(f"ws://127.0.0.1:{port}/session", max_size=None) as stream:

        def ask(method: str, **params: object) -> Any:
            number = next(numbers)
            stream.send(json.dumps({"id": number, "method": method, "params": params}))
            while (message := json.loads(stream.recv(timeout=120))).get("id") != number:
                if message["method"] == "log.entryAdded" and message["params"]["level"] == "error":
                    errors.append(message["params"]["text"])
            assert message["type"] == "success", message
            return message["result"]

        ask("session.new", capabilities={})
        ask("session.subscribe", events=["log.entryAdded"])
        context = ask("browsingContext.getTree")["contexts"][0]["context"]
        ask("browsingContext.navigate", context=context, url=url, wait="complete")

        def run(expression: str) -> Any:
            how = {"target": {"context": context}, "awaitPromise": False, "userActivation": True}
            result = ask("script.evaluate", expression=expression, **how)
            assert result["type"] == "success", result
            return result["result"].get("value")

        yield run
    assert not errors


@contextmanager
def webkit(_folder: Path, url: str) -> Iterator[Script]:
    """Open an address in the browser of WebKitGTK, on a display of its own."""
    screen, driver = shutil.which("Xvfb"), shutil.which("WebKitWebDriver")
    browser = next(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"), None)
    if not (screen and driver and browser):
        pytest.skip("WebKit is not installed: `apt-get install webkit2gtk-driver xvfb`")
    port, display = free_port(), f":{90 + os.getpid() % 1000}"
    # in a container, WebKit cannot start its sandbox
    environment = {"DISPLAY": display, "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1"}
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def ask(path: str, **body: object) -> Any:
        response = client.post(path, json=body)
        assert response.is_success, response.text
        return response.json()["value"]

    programs = [screen, display, "-screen", "0", "1400x900x24"], [driver, f"--port={port}"]
    with client, _running(*programs, port=port, **environment):
        options = {"binary": str(browser), "args": ["--automation"]}
        session = ask("/session", capabilities={"alwaysMatch": {"webkitgtk:browserOptions": options}})
        address = f"/session/{session['sessionId']}"
        ask(f"{address}/url", url=url)

        yield lambda expression: ask(f"{address}/execute/sync", script=f"return {expression}", args=[])
        with suppress(httpx.TransportError):
            client.delete(address)


@pytest.mark.parametrize("engine", [firefox, webkit])
def test_the_service_and_local_mode_label_the_sample_which_repeats(engine: Any, tmp_path: Path) -> None:
    (profile := tmp_path / "profile").mkdir()
    with serving(tmp_path / "served") as site, engine(profile, site.url) as page:
        eventually(lambda: page("document.documentElement.dataset.ready === ''"), timeout_s=60)
        assert page("crossOriginIsolated")
        page(CLICK.format("sample-clip"))
        eventually(lambda: page(LABEL), timeout_s=60)
        page(CLICK.format("local"))
        eventually(lambda: page("document.getElementById('place').textContent").startswith("Ready"), timeout_s=120)
        page(CLICK.format("stop"))
        page(CLICK.format("sample-clip"))
        eventually(lambda: page(LABEL), timeout_s=120)
        page(f"{POSITION_S} = 9")
        eventually(lambda: page(POSITION_S) >= 9, timeout_s=60)
        eventually(lambda: 0.2 < page(POSITION_S) < 5, timeout_s=60)
        page(CLICK.format("stop"))
