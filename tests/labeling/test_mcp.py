"""Tools of `mien mcp`, called as functions, and by the client of the official SDK."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from mien.app.labeling.mcp import tools
from mien.app.labeling.reading import NotAFile
from mien.app.settings import Settings
from mien.data.contract import LABELS
from tests.support import sample_photo
from tests.support.albums import write_photos


def test_photos_and_folders_are_labeled_and_summarized(settings: Settings, tmp_path: Path) -> None:
    photo, folder, summarize = tools(settings)
    (face,) = photo(str(sample_photo()))
    assert (face["label"] in LABELS, set(face["votes"])) == (True, set(LABELS))
    photos, out = write_photos(tmp_path / "photos", "a.jpg", "b.jpg"), tmp_path / "out"
    (photos / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 damaged")
    summary = folder(str(photos), str(out))
    assert (summary["images"], summary["faces"], summary["statuses"]["error"]) == (3, 2, 1)
    assert (sum(summary["labels"].values()), (out / "labels.csv").is_file()) == (2, True)
    assert summarize(str(out)) == summary | {"written": []}
    with pytest.raises(NotAFile):  # which would never end
        photo("/dev/zero")


def test_a_client_of_the_official_sdk_calls_the_tools(artifact: Path, tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="mcp is not installed: pip install mcp")
    options = ["--model", str(artifact), "--detector", "builtin", "--device", "cpu"]
    command = ["-m", "mien", "mcp", *options]
    program = mcp.StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))

    async def session() -> tuple[list[str], list[object]]:
        async with mcp.Client(program) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            arguments = ("label_photo", {"path": str(sample_photo())}), ("summarize", {"out": str(tmp_path)})
            return names, [await client.call_tool(*call) for call in arguments]

    names, (labeled, failed) = asyncio.run(session())
    assert names == ["label_photo", "label_folder", "summarize"]
    assert labeled.structured_content["result"][0]["label"] in LABELS
    assert failed.is_error
    assert str(tmp_path) in failed.content[0].text
