"""Corrections: storage, validity for the same bytes only, and export as a data set."""

import errno
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from fastapi.testclient import TestClient

from mien.app.errors import LabelingError
from mien.app.inference.records import Box
from mien.app.labeling.inputs import CORRECTIONS, Item
from mien.app.labeling.journal import Correction, Corrections, Journal, Result
from mien.app.labeling.review.export import write_export
from mien.app.labeling.review.server import append, serve_review
from mien.app.settings import Settings
from mien.data.contract import decode
from mien.data.readers.base import open_reader
from tests.labeling.conftest import Labeled, decide, opened, page_data
from tests.support.albums import label_folder, rows_of


def faces_of(page: TestClient, **query: str) -> list[dict[str, Any]]:
    faces: list[dict[str, Any]] = page.get("/api/faces", params={"state": "open"} | query).json()["faces"]
    return faces


def test_the_page_and_its_faces_come_least_confident_first(page: TestClient) -> None:
    assert "Review labels" in page.get("/").text
    faces = faces_of(page)
    assert [face["confidence"] for face in faces] == sorted(face["confidence"] for face in faces)
    assert (len(faces), len(faces_of(page, reason="small")), faces_of(page, reason="dark")) == (7, 7, [])
    thumb = page.get(faces[0]["thumb"])
    assert decode(thumb.content).shape == (96, 96, 3)
    assert thumb.headers["cache-control"] == "no-store", "the next run has the same addresses"
    assert decode(page.get("/api/photo", params={"file": "0.jpg", "face": 0}).content).shape == (112, 112, 3)
    assert page.get("/api/photo", params={"file": "nowhere.jpg"}).status_code == 404


def test_a_decision_is_saved_shown_and_can_be_undone(page: TestClient, own: Labeled) -> None:
    before = (own.out / "labels.csv").read_bytes()
    wrong = (("0.jpg", 0, "bored", 422), ("0.jpg", 9, "anger", 422), ("nowhere.jpg", 0, "anger", 404))
    for file, face, label, status in wrong:
        assert decide(page, file, label, face=face) == status
    assert not (own.out / CORRECTIONS).exists()
    assert decide(page, "0.jpg", "anger") == 200
    assert decide(page, "clip.avi", "fear", frame=1) == 200
    decisions = {(one.file, one.frame, one.face): one.label for one in Corrections(own.out)}
    assert decisions == {("0.jpg", -1, 0): "anger", ("clip.avi", 1, 0): "fear"}
    assert len(faces_of(page)) == 5
    assert {face["decision"] for face in faces_of(page, state="reviewed")} == {"anger", "fear"}
    assert decide(page, "0.jpg", "undone") == 200
    assert len([*Corrections(own.out)]) == 1
    assert (own.out / "labels.csv").read_bytes() == before


def test_tables_report_and_summary_have_the_decisions_when_the_page_is_stopped(
    own: Labeled, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = {row["file"]: row["label"] for row in rows_of(own.out)}
    labels = {"0.jpg": "anger", "1.jpg": "not_a_face", "2.jpg": predicted["2.jpg"]}

    def decide_until_ctrl_c(server: uvicorn.Server, **_options: object) -> None:
        with opened(server.config.loaded_app) as page:
            assert [decide(page, file, label) for file, label in labels.items()] == [200] * 3
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", decide_until_ctrl_c)
    serve_review(own.out, 0)
    rows = rows_of(own.out)
    assert {row["file"]: row["corrected"] for row in rows if row["corrected"]} == labels
    lines = [json.loads(line) for line in (own.out / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["corrected"] or "" for line in lines] == [row["corrected"] for row in rows]
    report = (own.out / "report.html").read_text(encoding="utf-8")
    data = page_data(report)
    decided = Counter([*labels.values(), *(row["label"] for row in rows if row["face"] and not row["corrected"])])
    decided.pop("not_a_face")
    assert {label["name"]: label["count"] for label in data["labels"] if label["count"]} == decided
    assert {"reviewed": 3, "corrected": 1, "not_a_face": 1}.items() <= data["counts"].items()
    assert {face["file"]: face["decision"] for face in data["faces"] if face["decision"]} == {
        file: label for file, label in labels.items() if label != "not_a_face"
    }
    run = label_folder(own.photos, own.out, settings, "csv", replace=True)
    assert (run["reviewed"], run["corrected"]) == (3, 2)


def test_pages_of_other_sites_can_neither_read_nor_write(page: TestClient, own: Labeled) -> None:
    body = '{"file": "0.jpg", "face": 0, "label": "anger"}'
    for sent in ({"Content-Type": "text/plain"}, {}):  # what browsers let them send without asking first
        assert page.post("/api/decisions", content=body, headers=sent).status_code == 422
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert page.options("/api/decisions", headers=asked).status_code == 405
    for host in ("example.org", "testserver"):
        assert page.get("/api/faces", headers={"Host": host}).status_code == 400
    assert not (own.out / CORRECTIONS).exists()


@pytest.mark.parametrize("edit", [lambda lines: lines + b'{"file": "1.jpg", "fra', bytes.rstrip])
def test_a_truncated_line_and_a_missing_line_feed_affect_no_other_line(
    page: TestClient, own: Labeled, edit: Callable[[bytes], bytes]
) -> None:
    for file in (0, 1):
        decide(page, f"{file}.jpg", "anger")
    lines = (own.out / CORRECTIONS).read_bytes()
    (own.out / CORRECTIONS).write_bytes(edit(lines))
    for count in (2, 3):
        assert [correction.file for correction in Corrections(own.out)] == [f"{file}.jpg" for file in range(count)]
        decide(page, "2.jpg", "fear")
    assert len(faces_of(page, state="reviewed")) == 3
    assert (own.out / CORRECTIONS).read_bytes().startswith(lines + b"{")


def test_a_correction_stays_with_its_bytes_and_its_face_whatever_their_name_and_number(
    page: TestClient, own: Labeled, settings: Settings, tmp_path: Path
) -> None:
    for file, label in (("0.jpg", "anger"), ("1.jpg", "fear"), ("2.jpg", "sadness")):
        decide(page, file, label)
    (shown,) = (face for face in faces_of(page, state="reviewed") if face["file"] == "0.jpg")
    (own.photos / "2.jpg").rename(own.photos / "renamed.jpg")
    label_folder(own.photos, own.out, settings, "csv", replace=True)
    with closing(Journal(own.out)) as journal:
        images = {file: journal.result(file, None) for file in ("0.jpg", "1.jpg")}
        (face, other) = (image.faces[0] for image in images.values() if image is not None)
        x, y, width, height = face.box
        # The larger face comes first, and overlaps the other one.
        larger = replace(face, box=Box(x, y, width, 1.5 * height), index=0)
        changed = {"0.jpg": (larger, replace(face, index=1)), "1.jpg": (replace(other, box=Box(500, 500, 50, 50)),)}
        journal.save([replace(image, faces=changed[file]) for file, image in images.items() if image is not None])
    states = {(face["file"], face["face"]): face["decision"] for face in faces_of(page, state="")}
    assert {key: decision for key, decision in states.items() if decision} == {
        ("0.jpg", 1): "anger",
        ("renamed.jpg", 0): "sadness",
    }, "the open page shows the rerun"
    assert decide(page, "0.jpg", "fear", box=shown["box"]) == 409, "the page was loaded before"
    said = write_export(own.out, tmp_path / "faces", everything=False)
    names = {path.name for path in (tmp_path / "faces").rglob("*.png")}
    assert names == {"0.jpg.face1.png", "renamed.jpg.face0.png"}
    assert "1 correction without a matching face" in said
    assert "  1.jpg: fear" in said


def test_no_decision_of_several_writers_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # More appends are at once.
    name = "long" * 1_000  # A reader can see half of a line.
    (tmp_path / ".mien").mkdir()
    made = [Correction(f"{name}.jpg", -1, 0, str(number), "anger", "fear", (0, 0, 9, 9)) for number in range(300)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda correction: append(tmp_path, correction), made))
    assert len([*Corrections(tmp_path)]) == 300


def test_threads_that_read_a_journal_at_once_get_their_own_rows(tmp_path: Path) -> None:
    (tmp_path / ".mien").mkdir()
    with closing(Journal(tmp_path)) as journal, ThreadPoolExecutor(4) as threads:
        names = [f"{number}.jpg" for number in range(500)]
        journal.sync({name: Item(name, b"/", 1, "1") for name in names})
        journal.save([Result(name, b"/", "no_face", sha256=name) for name in names])

        def wrong_values(first: int) -> int:
            chosen = [names[(31 * first + 7 * step) % 500] for step in range(5_000)]
            results = (journal.result(name, None) for name in chosen)
            return sum(result is None or result.sha256 != name for name, result in zip(chosen, results, strict=True))

        assert sum(threads.map(wrong_values, range(4))) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows does not move a folder with open files")
def test_a_full_disk_is_reported_and_no_decision_is_saved_where_a_folder_was_before_it_was_moved(
    page: TestClient, own: Labeled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        response = page.post("/api/decisions", json={"file": "0.jpg", "face": 0, "label": "anger"})
    assert (response.status_code, "no space left" in response.json()["detail"]) == (422, True)
    own.out.rename(own.out.with_name("moved"))
    assert decide(page, "0.jpg", "anger") == 422
    assert not own.out.exists()


# Exports


def test_reviewed_faces_become_class_folders_that_training_reads(
    page: TestClient, own: Labeled, tmp_path: Path
) -> None:
    with pytest.raises(LabelingError, match=r"no face of .* is reviewed\. Run mien review .*, or add --all"):
        write_export(own.out, tmp_path / "none", everything=False)
    assert not (tmp_path / "none").exists()
    for file, label in (("0.jpg", "anger"), ("1.jpg", "not_a_face"), ("2.jpg", "surprise")):
        decide(page, file, label)
    said = write_export(own.out, target := tmp_path / "my faces", everything=False)
    assert "2 faces" in said
    assert shlex.split(said.splitlines()[-1])[-1] == str(target)
    samples = {(sample.label, Path(sample.key).name) for sample in open_reader("folders", target).samples("train")}
    assert samples == {("anger", "0.jpg.face0.png"), ("surprise", "2.jpg.face0.png")}
    write_export(own.out, tmp_path / "all", everything=True)
    assert len(open_reader("folders", tmp_path / "all").samples("train")) == 6


def test_an_export_needs_a_new_or_empty_folder_and_is_whole_or_absent(
    own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, link, mine = tmp_path / "disk", tmp_path / "link", tmp_path / "mine.txt"
    disk.mkdir()
    link.symlink_to(disk)
    mine.write_text("the only copy")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(LabelingError, match="cannot write"):
            write_export(own.out, link, everything=True)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "photos", "disk", "link", "mine.txt"}
    write_export(own.out, link, everything=True)
    assert (link.is_symlink(), len(list(disk.rglob("*.png")))) == (True, 7)
    for target in (link, mine, own.out / "crops"):
        with pytest.raises(LabelingError, match="is not an empty folder"):
            write_export(own.out, target, everything=True)
    assert (mine.read_text(), len(list(disk.rglob("*.png")))) == ("the only copy", 7)


def test_a_photo_that_took_the_name_of_another_is_not_exported(
    own: Labeled, settings: Settings, tmp_path: Path
) -> None:
    photos = own.photos
    shutil.copyfile(photos / "2.jpg", photos / "copy.jpg")  # It would be in two splits.
    label_folder(photos, tmp_path / "own", settings, "csv")
    (photos / "1.jpg").replace(photos / "0.jpg")  # They have the same size.
    clip = (photos / "clip.avi").read_bytes()
    (photos / "clip.avi").write_bytes(clip[:-1] + bytes([clip[-1] ^ 1]))
    said = write_export(tmp_path / "own", tmp_path / "faces", everything=True)
    assert "3 faces in" in said
    assert "4 photos not exported:\n  0.jpg is not the image that was labeled" in said
    assert f"1.jpg can no longer be read ({os.strerror(errno.ENOENT)}): label" in said
    assert "clip.avi is not the image that was labeled" in said
    assert {row["file"] for row in rows_of(tmp_path / "faces", "manifest.csv")} == {"2.jpg", "3.jpg", "4.jpg"}
