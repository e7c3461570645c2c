"""The page in Firefox (WebDriver BiDi) and WebKitGTK (WebDriver): the engines that Playwright would download."""

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
from tests.support import eventually, is_listening

# A function that runs a JavaScript expression in the page, and returns its value; promises are awaited.
Script = Callable[[str], Any]


def _json(expression: str) -> str:
    """The value as JSON; a promise only where one is needed, as WebKit may lose its callback and never answer."""
    write = "const write = (value) => JSON.stringify(value) ?? null;"
    return f"(() => {{ {write} const value = {expression}; return value?.then ? value.then(write) : write(value); }})()"


@contextmanager
def _running(*commands: list[str], port: int, **environment: str) -> Iterator[None]:
    """Run programs, of which the last one listens at a port."""
    with ExitStack() as stack:
        for command in commands:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(command, env=os.environ | environment, start_new_session=True, **quiet)
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
            how = {"target": {"context": context}, "awaitPromise": True, "userActivation": True}
            result = ask("script.evaluate", expression=_json(expression), **how)
            assert result["type"] == "success", result
            return json.loads(result["result"].get("value", "null"))

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

        yield lambda script: json.loads(
            ask(f"{address}/execute/sync", script=f"return {_json(script)}", args=[]) or "null"
        )
        with suppress(httpx.TransportError):
            client.delete(address)
