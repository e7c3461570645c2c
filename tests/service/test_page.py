"""The page and its files: complete, local, and with a strict content security policy."""

import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from fastapi.testclient import TestClient

from mien.app.service.routes import page
from mien.data.contract import EIGHT_LABELS
from mien.models.detector.manifest import default_detector_dir
from mien.models.manifest import read_manifest
from tests.support import ROOT

FOLDER = ROOT / "app" / "static" / "page"
PAGES = ("/", "/card")
SCRIPTS = [
    f"/page/{path.relative_to(FOLDER).as_posix()}" for path in FOLDER.rglob("*.js") if "runtime" not in path.parts
]


def crawl(client: TestClient, *addresses: str) -> dict[str, httpx.Response]:
    """The responses at these addresses and at those that pages link or load and scripts import."""
    responses, waiting = dict[str, httpx.Response](), list(addresses)
    while waiting:
        if (address := waiting.pop()) not in responses:
            responses[address] = response = client.get(address)
            pattern = r'(?:src|href)="([^"#]+)"' if address in PAGES else r'from "([^"]+)"'
            if address in PAGES or address.startswith("/page/"):
                waiting += [urljoin(address, found) for found in re.findall(pattern, response.text)]
    return responses


def test_everything_that_pages_and_scripts_load_is_served_locally_within_the_policy(client: TestClient) -> None:
    assert len(SCRIPTS) > 20
    for address, response in crawl(client, *PAGES, *SCRIPTS).items():
        assert response.status_code == 200, address
        if address in PAGES:
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert response.headers["permissions-policy"].startswith("camera=(self)")
            assert not re.findall(r"<style| style=| on(?:click|load)=", response.text), address
        if address in SCRIPTS:
            assert response.headers["content-type"].startswith("text/javascript")
            assert response.headers["cache-control"] == "no-cache"
            forbidden = r"https?://|innerHTML|insertAdjacentHTML|document\.write|eval\("
            assert not re.findall(forbidden, response.text), address


def test_a_video_is_served_in_parts_as_safari_requests_it(client: TestClient) -> None:
    path, whole = "/page/samples/clip.webm", (FOLDER / "samples" / "clip.webm").read_bytes()
    for first, last in ((0, 1), (0, len(whole) - 1), (500, 10**9)):
        part = client.get(path, headers={"range": f"bytes={first}-{last}"})
        assert (part.status_code, part.content) == (206, whole[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{min(last, len(whole) - 1)}/{len(whole)}"
    for wrong in ("bytes=0-", "bytes=-5", "bytes=0-1,3-4", "bytes=x", "lines=0-1"):
        assert client.get(path, headers={"range": wrong}).content == whole, "browsers keep it to play it offline"
    for outside in (f"bytes={len(whole)}-{len(whole) + 1}", "bytes=5-2"):
        response = client.get(path, headers={"range": outside})
        assert (response.status_code, response.headers["content-range"]) == (416, f"bytes */{len(whole)}")
        assert response.headers["content-type"] == "application/problem+json"
    for part in ("bytes=0-9", "bytes=9999999-", "lines=1"):
        icon = client.get("/page/icon.svg", headers={"range": part})
        assert (icon.status_code, icon.content) == (200, (FOLDER / "icon.svg").read_bytes()), (
            "any other file, as a whole"
        )
        assert "accept-ranges" not in icon.headers


def test_a_script_is_compressed_and_revalidated(client: TestClient) -> None:
    zipped = client.get("/page/ui/main.js", headers={"accept-encoding": "gzip"})
    assert (zipped.headers["content-encoding"], zipped.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert zipped.content == (FOLDER / "ui" / "main.js").read_bytes()
    again = client.get("/page/ui/main.js", headers={"if-none-match": zipped.headers["etag"]})
    assert again.status_code == 304


def test_the_sample_photo_is_labeled_by_the_served_model(client: TestClient) -> None:
    photo = (FOLDER / "samples" / "photo.jpg").read_bytes()
    expected = client.post("/v1/expressions", content=photo, headers={"content-type": "image/jpeg"}).json()
    (image,) = client.get("/page/samples/photo.json").json()["images"]
    assert [face["probabilities"] for face in image["faces"]] == [
        face["probabilities"] for face in expected["images"][0]["faces"]
    ]


def test_the_service_worker_may_only_fetch_from_this_service(client: TestClient) -> None:
    response = client.get("/sw.js")
    assert response.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'"
    )
    assert response.headers["content-type"].startswith("text/javascript")


def test_the_types_of_the_package_name_the_expressions_of_the_program() -> None:
    (union,) = re.findall(r"type Expression = ([^;]+);", (FOLDER / "index.d.ts").read_text(encoding="utf-8"))
    assert tuple(re.findall(r'"(\w+)"', union)) == EIGHT_LABELS


def test_a_model_card_becomes_a_page_that_shows_its_html_as_text(tmp_path: Path) -> None:
    card = "# Name\n\nA **model** with [terms](https://example.org) <script>alert(1)</script>\n\n"
    card += "- one\n- [two](javascript:x)\n\n| | |\n|---|---|\n| faces | 9 |\n\n| set | right |\n|---|---|\n| a | 1 |\n"
    (tmp_path / "card.md").write_text(card)
    text = page.card_page(tmp_path / "card.md")
    assert "<h1>Name</h1>" in text
    assert '<strong>model</strong> with <a href="https://example.org">terms</a> &lt;script&gt;' in text
    assert 'href="javascript' not in text
    assert (text.count("<th>"), text.count("<td>"), text.count("</table></div>")) == (2, 4, 2)


def test_the_model_card_is_served_as_released(client: TestClient) -> None:
    response = client.get("/v1/models/tiny.test/card")
    assert response.headers["content-type"] == "text/markdown; charset=utf-8"
    assert response.text.startswith("# Tiny\n")
    assert client.get("/v1/models/other/card").status_code == 404


@pytest.mark.parametrize("script", ["local/worker.js", "runtime/ort.wasm.min.mjs"])
def test_only_workers_may_compile_webassembly(client: TestClient, script: str) -> None:
    if not (FOLDER / script).is_file():
        pytest.skip(f"{script} is not here: `make runtime` fetches it")
    headers = client.get(f"/page/{script}").headers
    assert page.starts_worker(script)
    assert page.starts_worker(script.replace("/", "\\"))  # as StaticFiles passes it on Windows
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'"
    )
    assert "wasm" not in client.get("/page/ui/main.js").headers["content-security-policy"]


def test_every_module_of_a_worker_may_be_loaded_by_an_isolated_page(client: TestClient) -> None:
    modules = crawl(client, "/page/local/worker.js")
    assert "/page/core/descriptor.js" in modules
    assert {module.headers["cross-origin-embedder-policy"] for module in modules.values()} == {"require-corp"}


def test_without_the_runtime_there_is_no_local_mode(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RUNTIME", tmp_path)
    facts = client.get("/page/facts.json").json()
    assert (facts["service"], facts["local"]) == (True, False)
    assert facts["classifier"]["labels"], "the page always has the labels"
    assert client.get("/page/models/detector.onnx").status_code == 404


def test_with_the_runtime_the_graphs_are_served(
    client: TestClient, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ort.wasm.min.mjs").touch()
    monkeypatch.setattr(page, "RUNTIME", tmp_path)
    expected = read_manifest(artifact).graph("fp32").file
    facts = client.get("/page/facts.json").json()
    graph = facts["classifier"]["graphs"]["wasm"]
    assert graph == {"file": "classifier.fp32.onnx", "precision": "fp32"}, "this model has no int8 graph"
    assert client.get(f"/page/models/{graph['file']}").content == (artifact / expected).read_bytes()
    detector = default_detector_dir() / "model.onnx"
    assert client.get("/page/models/detector.onnx").content == detector.read_bytes()
    assert client.get("/page/models/manifest.json").status_code == 404
    tag = client.get("/page/models/detector.onnx").headers["etag"]
    again = client.get("/page/models/detector.onnx", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
