"""The page as a folder: complete, with relative addresses and its policy."""

import json
import re
from pathlib import Path

import pytest

from mien.app import VERSION
from mien.app.errors import StartupError
from mien.app.service import static_page
from mien.app.service.routes.page import FILES, POLICY, RUNTIME
from mien.app.settings import Settings


@pytest.fixture(scope="module")
def folder(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("page") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_page, "has_runtime", lambda: True)
        static_page.write_page(site, Settings(model=artifact))
        (site / "index.html").write_text("old")
        static_page.write_page(site, Settings(model=artifact))
    return site


def test_the_folder_has_everything_that_the_page_needs(folder: Path) -> None:
    own = {"sw.js", "package.json"}
    for path in (path for path in FILES.rglob("*.*") if path.suffix != ".html" and path.name not in own):
        assert (folder / "page" / path.relative_to(FILES)).read_bytes() == path.read_bytes()
    assert (folder / "sw.js").read_bytes() == (FILES / "sw.js").read_bytes(), "it controls the folder that it is in"
    assert json.loads((folder / "page" / "package.json").read_text())["version"] == VERSION
    (image,) = json.loads((folder / "page" / "samples" / "photo.json").read_text())["images"]
    assert len(image["faces"]) == 1
    facts = json.loads((folder / "page" / "facts.json").read_text())
    assert (facts["service"], facts["local"]) == (False, True)
    graphs = {facts["detector"]["file"], facts["classifier"]["graphs"]["wasm"]["file"]}
    assert {path.name for path in (folder / "page" / "models").iterdir()} >= graphs
    assert "<h1>Tiny</h1>" in (folder / "card.html").read_text()


@pytest.mark.parametrize("name", ["index.html", "card.html"])
def test_addresses_are_relative_and_the_policy_is_in_the_page(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in text
    addresses = re.findall(r'(?:href|src)="([^"#]+)"', text)
    assert addresses
    for address in set(addresses) - {"./", "docs"}:  # the API is hidden without a service
        assert not address.startswith(("/", "http"))
        assert (folder / address).is_file(), address


@pytest.mark.parametrize(
    ("runtime", "own", "message"),
    [(False, [], f"make runtime.*{re.escape(str(RUNTIME))}"), (True, ["index.html"], r"index\.html would be replaced")],
)
def test_without_the_runtime_or_over_another_page_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: bool, own: list[str], message: str
) -> None:
    monkeypatch.setattr(static_page, "has_runtime", lambda: runtime)
    for name in own:
        (tmp_path / name).touch()
    with pytest.raises(StartupError, match=message):
        static_page.write_page(tmp_path, Settings())
    assert [path.name for path in tmp_path.iterdir()] == own
