"""The page and its files: complete, local, and with a strict content security policy."""

import re
import shutil
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from mien.app.errors import StartupError
from mien.app.service import page
from mien.app.service.page import BrowserPipeline, browser_pipeline
from mien.app.settings import Settings
from mien.models.manifest import ArtifactError, artifact_dir
from tests.support import ROOT, tiny_artifact

FOLDER = ROOT / "app" / "static" / "page"
SCRIPTS = [
    f"/page/{path.relative_to(FOLDER).as_posix()}" for path in FOLDER.rglob("*.js") if "runtime" not in path.parts
]


def test_everything_that_pages_and_scripts_load_is_served_locally_within_the_policy(client: TestClient) -> None:
    assert len(SCRIPTS) > 20
    waiting, seen = ["/", "/docs", *SCRIPTS], set[str]()
    while waiting:
        if (address := waiting.pop()) in seen:
            continue
        seen.add(address)
        response = client.get(address)
        assert response.status_code == 200, address
        if address in ("/", "/docs") or address.startswith("/page/"):
            pattern = r'from "([^"]+)"' if address.startswith("/page/") else r'(?:src|href)="([^"#]+)"'
            waiting += [urljoin(address, found) for found in re.findall(pattern, response.text)]
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy, address
        if address == "/":
            assert "; script-src 'self' 'sha256-" in policy
            assert "unsafe" not in policy
            assert response.headers["permissions-policy"].startswith("camera=(self)")
            assert not re.findall(r"<style| style=| on(?:click|load)=", response.text), address
        if address in SCRIPTS:
            assert response.headers["content-type"].startswith("text/javascript")
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["cross-origin-embedder-policy"] == "require-corp"
            assert ("wasm-unsafe-eval" in policy) == ("/local/" in address)
            forbidden = r"https?://|innerHTML|insertAdjacentHTML|document\.write|eval\("
            assert not re.findall(forbidden, response.text), address
        if address.startswith("/page/page.js?v="):
            assert "immutable" in response.headers["cache-control"]
    assert client.get("/page/page.js?v=old").headers["cache-control"] == "no-cache"


def test_the_card_of_the_model_is_text_that_every_browser_shows(client: TestClient) -> None:
    response = client.get("/page/card.txt")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    (model,) = client.get("/v1/models").json()["models"]
    for name in (model["name"], "fast"):
        assert client.get(f"/v1/models/{name}/card").content == response.content
    assert client.get("/v1/models/other/card").status_code == 404


def test_the_page_replaces_an_earlier_one_but_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "has_runtime", lambda: True)
    (tmp_path / "index.html").touch()
    with pytest.raises(StartupError, match=r"index\.html would be replaced"):
        page.write_page(tmp_path, Settings())
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    for _ in range(2):
        page.write_page(tmp_path / "new", Settings())
        written = tmp_path / "new" / "page"
        assert {"page.js", "page.css", "models", "card.txt"} <= {path.name for path in written.iterdir()}
        assert [path.name for path in (written / "models").iterdir()] == ["photo.int8.onnx"]


def test_the_graph_is_served_under_its_name_and_facts_cannot_end_their_script(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = artifact_dir(None) / "photo.int8.onnx"
    monkeypatch.setattr(page, "has_runtime", lambda: True)
    monkeypatch.setattr(page, "browser_pipeline", lambda *_: BrowserPipeline({"graph": {"version": "abc"}}, graph))
    response = client.get("/page/models/photo.int8.onnx?v=abc")
    assert (response.content, "immutable" in response.headers["cache-control"]) == (graph.read_bytes(), True)
    assert client.get("/page/models/other.onnx").status_code == 404
    assert "</script><b>" not in page.index_html({"name": "</script><b>"})


def test_a_browser_gets_the_settings_of_the_service_and_the_graph_if_it_is_there_and_whole(tmp_path: Path) -> None:
    usual = browser_pipeline(artifact_dir(None), Settings())
    assert usual.facts["graph"]["defaults"] == {"max_faces": (200,)}
    assert usual.graph == artifact_dir(None) / "photo.int8.onnx"
    changes = {"prior": "natural", "max_faces": 3, "min_face_px": 24, "detection_threshold": 0.77}
    facts = browser_pipeline(artifact_dir(None), Settings(**changes)).facts
    expected = {"max_faces": (3,), "score_threshold": (0.77,), "prior_correction": (0.0,) * 7}
    assert facts["graph"]["defaults"] == expected
    assert facts["limits"]["min_face_px"] == 24
    without = browser_pipeline(tiny_artifact(tmp_path / "tiny.test"), Settings())
    assert (without.graph, without.facts["graph"]) == (None, None)
    damaged = Path(shutil.copytree(artifact_dir(None), tmp_path / artifact_dir(None).name))
    (damaged / "photo.int8.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match=r"photo\.int8\.onnx has sha256"):
        browser_pipeline(damaged, Settings())
