"""The page as a folder: complete, with relative addresses and its policy."""

import json
import re
from pathlib import Path

import pytest

from mien.app.errors import StartupError
from mien.app.service import static_page
from mien.app.service.routes.page import FILES, POLICY
from mien.app.settings import Settings


@pytest.fixture
def folder(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(static_page, "has_runtime", lambda: True)
    static_page.write_page(tmp_path / "site", Settings(model=artifact))
    return tmp_path / "site"


def test_the_folder_has_everything_that_the_page_needs(folder: Path, artifact: Path) -> None:
    names = [path.relative_to(FILES) for path in FILES.rglob("*") if path.is_file() and path.suffix != ".html"]
    assert names
    for name in names:
        assert (folder / "page" / name).read_bytes() == (FILES / name).read_bytes()
    facts = json.loads((folder / "page" / "local.json").read_text())
    assert facts["service"] is False
    files = {facts["pipeline"]["detector"]["file"], facts["pipeline"]["classifier"]["graphs"]["wasm"]["file"]}
    assert {path.name for path in (folder / "page" / "models").iterdir()} >= files
    assert (folder / "page" / "card.md").read_bytes() == (artifact / "card.md").read_bytes()


@pytest.mark.parametrize("name", ["index.html", "card.html"])
def test_addresses_are_relative_and_the_policy_is_in_the_page(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in text
    addresses = re.findall(r'(?:href|src)="([^"#]+)"', text)
    assert addresses
    assert not [address for address in addresses if address.startswith(("/", "http"))]
    own = [address for address in addresses if address not in {"./", "docs"}]  # the API is hidden without a service
    assert not [address for address in own if not (folder / address).is_file()]


def test_writing_again_replaces_the_files(folder: Path, artifact: Path) -> None:
    (folder / "index.html").write_text("old")
    static_page.write_page(folder, Settings(model=artifact))
    assert "<title>Mien" in (folder / "index.html").read_text()


def test_a_missing_runtime_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_page, "has_runtime", lambda: False)
    with pytest.raises(StartupError, match="make runtime"):
        static_page.write_page(tmp_path / "site", Settings())
    assert not (tmp_path / "site").exists()
