"""The page and its files: complete, local, and with a strict content security policy."""

import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from fastapi.testclient import TestClient

from mien.app.errors import StartupError
from mien.app.service import static_page
from mien.app.service.routes import page
from mien.app.settings import Settings
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
    for first, last in ((0, 1), (500, 10**9)):
        part = client.get(path, headers={"range": f"bytes={first}-{last}"})
        assert (part.status_code, part.content) == (206, whole[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{min(last, len(whole) - 1)}/{len(whole)}"
    assert client.get(path, headers={"range": "bytes=0-"}).content == whole, "browsers keep it to play it offline"
    assert client.get(path, headers={"range": f"bytes={len(whole)}-{len(whole) + 1}"}).status_code == 416


def test_the_sample_photo_is_labeled_by_the_served_model(client: TestClient) -> None:
    photo = (FOLDER / "samples" / "photo.jpg").read_bytes()
    expected = client.post("/v1/expressions", content=photo, headers={"content-type": "image/jpeg"}).json()
    (image,) = client.get("/page/samples/photo.json").json()["images"]
    assert [face["probabilities"] for face in image["faces"]] == [
        face["probabilities"] for face in expected["images"][0]["faces"]
    ]


def test_a_model_card_becomes_a_page_that_shows_its_html_as_text(tmp_path: Path) -> None:
    card = "# Name\n\nA **model** with [terms](https://example.org) <script>alert(1)</script>\n\n"
    card += "- one\n- [two](javascript:x)\n\n| set | right |\n|---|---|\n| a | 1 |\n"
    (tmp_path / "card.md").write_text(card)
    text = page.card_page(tmp_path / "card.md")
    assert '<strong>model</strong> with <a href="https://example.org">terms</a> &lt;script&gt;' in text
    assert 'href="javascript' not in text
    assert (text.count("<th>"), text.count("<td>")) == (2, 2)


def test_the_page_does_not_replace_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_page, "has_runtime", lambda: True)
    (tmp_path / "index.html").touch()
    with pytest.raises(StartupError, match=r"index\.html would be replaced"):
        static_page.write_page(tmp_path, Settings())
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
