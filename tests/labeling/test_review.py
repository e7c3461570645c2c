"""Corrections: storage, and validity for the same bytes only; people and samples."""

import csv
import errno
import io
import json
import os
import shutil
import socket
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

from mien.app.inference.records import Box
from mien.app.labeling.corrections import Correction, Corrections
from mien.app.labeling.files import CORRECTIONS, PEOPLE, LabelingError, output_lock
from mien.app.labeling.journal import Journal
from mien.app.labeling.reading import file_sha256
from mien.app.labeling.review import sources
from mien.app.labeling.review.export import write_export
from mien.app.labeling.review.sample import draw_sample
from mien.app.labeling.review.server import create_review_app, serve_review
from mien.data.contract import decode
from mien.data.readers.folders import Folders
from tests.labeling.conftest import Labeled, decide, opened
from tests.support.albums import label_folder, rows_of


def faces_of(page: TestClient, **query: str) -> list[dict[str, Any]]:
    faces: list[dict[str, Any]] = page.get("/api/faces", params=query).json()["faces"]
    return faces


def add_larger_face(journal: Journal, file: str, frame: int) -> None:
    """Give an image a larger face, which comes first, as another detector might."""
    image = journal.image(file, frame)
    assert image is not None
    (face,) = image.faces
    x, y, width, height = face.box
    larger = replace(face, box=Box(x + 2 * width, y, 2 * width, 2 * height), index=0)
    journal.save([replace(image, faces=(larger, replace(face, index=1)))])


def test_the_page_and_its_faces_come_least_confident_first(page: TestClient) -> None:
    assert "Review labels" in page.get("/").text
    faces = faces_of(page)
    assert len(faces) == 7
    assert [face["confidence"] for face in faces] == sorted(face["confidence"] for face in faces)
    assert page.get("/api/run").json()["reasons"][0] == {"name": "small", "count": 7}
    assert len(faces_of(page, reason="small")) == 7
    assert faces_of(page, reason="dark") == []
    thumb = page.get(f"/api/thumb/{faces[0]['row']}/{faces[0]['face']}")
    assert decode(thumb.content).shape == (96, 96, 3)
    assert thumb.headers["cache-control"] == "no-store", "the next run has the same addresses"
    assert decode(page.get("/api/photo", params={"file": "0.jpg", "face": 0}).content).shape == (112, 112, 3)
    assert page.get("/api/photo", params={"file": "nowhere.jpg"}).status_code == 404
    assert page.get("/api/faces", params={"offset": -5}).status_code == 422


def test_the_page_of_a_folder_whose_name_is_not_utf8_is_shown(own: Labeled) -> None:
    out = own.out.rename(os.fsdecode(os.fsencode(own.out) + b"\xe9"))
    with opened(create_review_app(Path(out))) as page:
        assert page.get("/api/run").json()["folder"].endswith("out\\xe9")
        assert decide(page, "0.jpg", "anger") == 200


def test_a_decision_is_saved_shown_and_can_be_undone(page: TestClient, own: Labeled) -> None:
    before = (own.out / "labels.csv").read_bytes()
    for file, face, label, status in (
        ("0.jpg", 0, "bored", 422),
        ("0.jpg", 9, "anger", 422),
        ("nowhere.jpg", 0, "anger", 404),
    ):
        assert decide(page, file, label, face=face) == status
    assert not (own.out / CORRECTIONS).exists()
    assert decide(page, "0.jpg", "anger") == 200
    assert decide(page, "0.jpg", "anger", before="undone") == 200, "of another page, the same"
    assert decide(page, "clip.avi", "fear", frame=1) == 200
    assert {(one.file, one.frame, one.face): one.label for one in Corrections(own.out)} == {
        ("0.jpg", -1, 0): "anger",
        ("clip.avi", 1, 0): "fear",
    }
    assert len(faces_of(page)) == 5
    assert {face["decision"] for face in faces_of(page, state="reviewed")} == {"anger", "fear"}
    assert decide(page, "0.jpg", "undone") == 200
    assert len(Corrections(own.out)) == 1
    assert (own.out / "labels.csv").read_bytes() == before


def test_tables_report_and_summary_have_the_decisions_when_the_page_is_stopped(
    own: Labeled, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = {row["file"]: row["label"] for row in rows_of(own.out)}
    labels = {"0.jpg": "anger", "1.jpg": "not_a_face", "2.jpg": predicted["2.jpg"]}

    def decide_until_ctrl_c(server: uvicorn.Server, **_options: object) -> None:
        with opened(server.config.loaded_app) as page:
            assert [decide(page, file, label) for file, label in labels.items()] == [200] * 3
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", decide_until_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        serve_review(own.out, 0, reviewer="anna")
    rows = rows_of(own.out)
    decided = {row["file"]: row["corrected"] for row in rows if row["reviewed_by"] == "anna"}
    assert decided == labels
    assert {(row["corrected"], row["reviewed_by"]) for row in rows if row["file"] not in labels} == {("", "")}
    lines = [json.loads(line) for line in (own.out / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["corrected"] or "" for line in lines] == [row["corrected"] for row in rows]
    assert "<b>3</b>reviewed" in (own.out / "report.html").read_text(encoding="utf-8")
    outcome = label_folder(own.photos, own.out, own.settings, "csv")
    assert (outcome.reviewed, outcome.corrected) == (3, 2)


def test_pages_of_other_sites_can_neither_read_nor_write(page: TestClient, own: Labeled) -> None:
    body = {"file": "0.jpg", "face": 0, "label": "anger"}
    assert page.post("/api/decisions", json=body, headers={"Origin": "https://example.org"}).status_code == 403
    assert page.post("/api/decisions", json=body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    for host in ("example.org", "testserver"):
        assert page.get("/api/faces", headers={"Host": host}).status_code == 403
    assert not (own.out / CORRECTIONS).exists()


def test_a_video_is_hashed_once_for_its_frames_and_again_after_a_change(
    own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing = Mock(wraps=file_sha256)
    monkeypatch.setattr(sources, "file_sha256", hashing)
    label_folder(own.photos, tmp_path / "own", own.settings, "csv")
    with opened(create_review_app(tmp_path / "own")) as page:
        for frame in (0, 1, 0):
            assert page.get("/api/photo", params={"file": "clip.avi", "frame": frame}).status_code == 200
        assert hashing.call_count == 1
        path = own.photos / "clip.avi"
        status, clip = path.stat(), path.read_bytes()
        path.write_bytes(clip[:-1] + bytes([clip[-1] ^ 1]))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        changed = page.get("/api/photo", params={"file": "clip.avi", "frame": 1})
        assert "not the image that was labeled" in changed.json()["detail"]


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


def test_a_correction_stays_with_its_face_when_another_detector_numbers_it_differently(
    page: TestClient, own: Labeled, tmp_path: Path
) -> None:
    decide(page, "0.jpg", "anger")
    decide(page, "1.jpg", "fear")
    with closing(Journal(own.out)) as journal:
        add_larger_face(journal, "0.jpg", -1)
        image = journal.image("1.jpg", -1)
        assert image is not None
        journal.save([replace(image, faces=(replace(image.faces[0], box=Box(500.0, 500.0, 50.0, 50.0)),))])
    said = write_export(own.out, tmp_path / "faces", everything=False)
    assert [path.name for path in (tmp_path / "faces").rglob("*.png")] == ["0.jpg.face1.png"]
    assert "1 correction without a matching face" in said
    assert "  1.jpg: fear" in said
    states = {(face["file"], face["face"]): face["decision"] for face in faces_of(page, state="all")}
    assert (states["0.jpg", 0], states["0.jpg", 1], states["1.jpg", 0]) == (None, "anger", None)


def test_a_page_that_was_loaded_before_a_rerun_decides_about_no_other_face(page: TestClient, own: Labeled) -> None:
    (shown,) = (face for face in faces_of(page) if face["file"] == "0.jpg")
    assert decide(page, "0.jpg", "anger", box=shown["box"]) == 200
    (video,) = page.get("/api/people").json()["videos"]
    person = video["people"][0]["faces"][0] | {"file": "clip.avi", "name": "Anna"}
    with closing(Journal(own.out)) as journal:
        add_larger_face(journal, "0.jpg", -1)
        add_larger_face(journal, "clip.avi", person["frame"])
    assert decide(page, "0.jpg", "fear", box=shown["box"]) == 409
    assert page.post("/api/people", json=person).status_code == 409
    assert [(correction.face, correction.label) for correction in Corrections(own.out)] == [(0, "anger")]
    assert not (own.out / PEOPLE).exists()


def test_faces_of_a_run_without_a_report_have_thumbnails(page: TestClient, own: Labeled, tmp_path: Path) -> None:
    label_folder(own.photos, tmp_path / "bare", own.settings, "csv")
    with opened(create_review_app(tmp_path / "bare")) as bare:
        faces = faces_of(bare)
        assert len(faces) == 7
        for face in faces:
            cut = bare.get(f"/api/thumb/{face['row']}/{face['face']}").content
            stored = next(one for one in faces_of(page) if (one["file"], one["frame"]) == (face["file"], face["frame"]))
            assert cut == page.get(f"/api/thumb/{stored['row']}/{stored['face']}").content
        assert bare.get(f"/api/thumb/{faces[0]['row']}/9").status_code == 404
        assert bare.get("/api/thumb/999/0").status_code == 404


def test_a_correction_follows_the_bytes_of_a_renamed_photo(page: TestClient, own: Labeled, tmp_path: Path) -> None:
    decide(page, "0.jpg", "anger")
    (own.photos / "0.jpg").rename(own.photos / "renamed.jpg")
    label_folder(own.photos, own.out, own.settings, "csv")
    reviewed = faces_of(page, state="reviewed")
    assert [face["file"] for face in reviewed] == ["renamed.jpg"], "the open page shows the rerun"
    write_export(own.out, tmp_path / "faces", everything=False)
    assert [path.name for path in (tmp_path / "faces").rglob("*.png")] == ["renamed.jpg.face0.png"]


def test_a_correction_of_an_earlier_version_applies_to_the_face_with_its_number(own: Labeled, tmp_path: Path) -> None:
    with closing(Journal(own.out)) as view:
        image = view.image("0.jpg", -1)
    assert image is not None
    lines = [
        {"file": "0.jpg", "frame": -1, "face": 0, "file_sha256": image.sha256, "predicted": predicted, "label": label}
        for predicted, label in ((image.faces[0].label, "anger"), ("none", "fear"))
    ]
    for line, count in zip(lines, (1, 0), strict=True):
        (own.out / CORRECTIONS).write_text(json.dumps(line) + "\n", encoding="utf-8")
        assert f"{count} face" in write_export(own.out, tmp_path / "faces", everything=False)


def test_no_decision_of_several_writers_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # more appends at once
    name = "long" * 1_000  # a line that a reader can see half written
    made = [Correction(f"{name}.jpg", -1, 0, str(number), "anger", "fear") for number in range(1_000)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda correction: Corrections(tmp_path).append(correction), made[:100]))
        list(pool.map(Corrections(tmp_path).append, made[100:]))
    assert len(Corrections(tmp_path)) == 1_000


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "cannot write to")])
def test_a_disk_that_is_full_or_read_only_is_reported(
    page: TestClient, own: Labeled, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(code, os.strerror(code))))
    body = {"file": "clip.avi", "frame": 1, "face": 0, "label": "anger", "name": "Anna"}
    for path in ("decisions", "people"):
        response = page.post(f"/api/{path}", json=body)
        assert response.status_code == 422
        assert words in response.json()["detail"]
    with pytest.raises(LabelingError, match=words):
        draw_sample(own.out, 5)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not move a folder with open files")
@pytest.mark.parametrize("reviewer", ["", "anna"])
def test_no_decision_is_saved_where_a_folder_was_before_it_was_moved(
    open_page: Callable[..., TestClient], own: Labeled, reviewer: str
) -> None:
    page = open_page(2 if reviewer else 0, reviewer)
    face = faces_of(page)[0]
    own.out.rename(own.out.with_name("moved"))
    body = {"file": face["file"], "frame": face["frame"], "face": face["face"], "label": "anger"}
    response = page.post("/api/decisions", json=body)
    assert (response.status_code, own.out.exists()) == (422, False)
    assert "cannot write to" in response.json()["detail"]


@pytest.mark.parametrize("decision", [{}, {"label": None}, {"box": [1, 2]}, {"box": [1, 2, 3, "wide"]}])
def test_a_line_that_was_edited_by_hand_is_named_each_time(
    page: TestClient, own: Labeled, decision: dict[str, object]
) -> None:
    line = {"file": "a.jpg", "frame": -1, "face": 0, "file_sha256": "1", "predicted": "anger", "label": "fear"}
    edited = line | decision if decision else {"label": "happy"}
    (own.out / CORRECTIONS).write_text(f"{json.dumps(line)}\n{json.dumps(edited)}\n", encoding="utf-8")
    for _ in range(2):
        response = page.get("/api/faces")
        assert response.status_code == 422
        assert f"{CORRECTIONS} line 2 " in response.json()["detail"]


def test_a_missing_sample_is_named_in_plain_text(page: TestClient) -> None:
    response = page.get("/decisions.csv")  # opened in a tab
    assert (response.status_code, response.headers["content-type"]) == (422, "text/plain; charset=utf-8")
    assert "--sample" in response.text


def test_people_of_a_video_are_named_and_other_pages_the_timeline_and_exports_follow(
    page: TestClient, own: Labeled, open_page: Callable[..., TestClient], tmp_path: Path
) -> None:
    other = open_page()
    assert "People in videos" in page.get("/people").text
    (video,) = page.get("/api/people").json()["videos"]
    (person,) = video["people"]
    assert (video["file"], person["number"], person["frames"], len(person["faces"])) == ("clip.avi", 1, 2, 2)
    assert decode(page.get(f"/api/thumb/{person['faces'][0]['row']}/0").content).shape == (96, 96, 3)
    body = {"file": "clip.avi", "frame": 1, "face": 0, "name": "Anna"}
    assert page.post("/api/people", json=body).json()["videos"][0]["people"][0]["name"] == "Anna"
    (video,) = other.get("/api/people").json()["videos"]
    assert video["people"][0]["name"] == "Anna"
    assert page.post("/api/people", json=body | {"face": 9}).status_code == 422
    assert page.post("/api/timeline", json={}).json() == {"written": ["timeline.csv", "timeline.html"]}
    assert {row["name"] for row in rows_of(own.out, "timeline.csv")} == {"Anna"}
    write_export(own.out, tmp_path / "faces", everything=True)
    named = {row["file"]: row["name"] for row in rows_of(tmp_path / "faces", "manifest.csv")}
    assert named == {"clip.avi": "Anna"} | {f"{number}.jpg": "" for number in range(5)}


def test_a_timeline_of_the_page_is_an_output_of_the_run(own: Labeled, tmp_path: Path) -> None:
    out = tmp_path / "bare"
    label_folder(own.photos, out, own.settings, "csv", min_confidence=1.0)
    with opened(create_review_app(out)) as page:
        (out / "timeline.csv").write_text("mine", encoding="utf-8")
        assert page.post("/api/timeline", json={}).status_code == 422
        assert (out / "timeline.csv").read_text(encoding="utf-8") == "mine"
        (out / "timeline.csv").unlink()
        with output_lock(out):  # of a run
            assert "in use" in page.post("/api/timeline", json={}).json()["detail"]
        assert page.post("/api/timeline", json={}).status_code == 200
    assert rows_of(out, "timeline.csv") == [], "faces below the limit of the run are left out"
    label_folder(own.photos, out, own.settings, "csv")
    assert rows_of(out, "timeline.csv"), "the next run updates it"


def test_reviewers_label_the_same_faces_unseen_and_their_decisions_are_one_table(
    own: Labeled, open_page: Callable[..., TestClient]
) -> None:
    answers = {"anna": ["anger"] * 3 + ["fear"] * 2, "ben": ["anger"] * 2 + ["fear"] * 3, "cleo": ["anger", "fear"] * 2}
    for reviewer, labels in answers.items():
        page = open_page(5, reviewer)
        faces = faces_of(page)
        assert len(faces) == 5
        assert {(face["predicted"], face["confidence"], face["percent"]) for face in faces} == {("", None, "")}
        assert page.get("/api/photo", params={"file": faces[0]["file"], "frame": faces[0]["frame"]}).status_code == 200
        for face, given in zip(faces, labels, strict=False):  # Cleo leaves one out
            assert decide(page, face["file"], given, frame=face["frame"], face=face["face"]) == 200
        assert len(faces_of(page)) == 5 - len(labels)
    with closing(Journal(own.out)) as journal:  # another model; the last photo of the sample is gone
        images = [image for image in journal.images() if image.faces]
        journal.save([replace(image, faces=(replace(image.faces[0], label="anger"),)) for image in images])
        journal._db.execute("UPDATE items SET found=0 WHERE name=? AND frame=?", (faces[4]["file"], faces[4]["frame"]))
    table = list(csv.DictReader(io.StringIO(page.get("/decisions.csv").text)))
    assert list(table[0]) == ["file", "frame", "face", "model", "anna", "ben", "cleo"]
    for reviewer, labels in answers.items():
        assert [row[reviewer] for row in table] == [*labels, *[""] * (5 - len(labels))]
    assert [row["model"] for row in table] == [*["anger"] * 4, ""], "the label of the last run"
    assert not (own.out / CORRECTIONS).exists()
    with pytest.raises(LabelingError, match="sample of 5 faces"):
        create_review_app(own.out, 6, "anna")
    for name, why in (("../anna", "up to 40 letters"), ("model", "another column")):
        with pytest.raises(LabelingError, match=why):
            create_review_app(own.out, 5, name)


def test_a_damaged_sample_or_one_with_fewer_faces_than_expressions_is_named(
    own: Labeled, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_sample(own.out, 5)
    for damage in ("{", '{"faces": [{"file": "0.jpg"}]}', "[]"):
        (own.out / "reviews" / "sample.json").write_text(damage, encoding="utf-8")
        with pytest.raises(LabelingError, match=r"sample\.json is damaged"):
            draw_sample(own.out, 5)
    (own.out / "reviews" / "sample.json").unlink()
    monkeypatch.setattr(Journal, "labels", lambda _: Counter(anger=3, fear=2, sadness=1))
    with pytest.raises(LabelingError, match="3 expressions"):
        draw_sample(own.out, 2)


def test_a_port_in_use_is_named(own: Labeled) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(LabelingError, match="another --port"):
        serve_review(own.out, other.getsockname()[1])


def test_copies_of_a_photo_are_one_face_of_a_sample_and_of_an_export(own: Labeled, tmp_path: Path) -> None:
    for number in range(5):
        shutil.copy(own.photos / "0.jpg", own.photos / f"copy{number}.jpg")
    label_folder(own.photos, own.out, own.settings, "csv")
    with pytest.raises(LabelingError, match="has 7 different faces"):
        draw_sample(own.out, 8)
    drawn = draw_sample(own.out, 7)
    assert len({(face.file_sha256, face.frame) for face in drawn}) == 7
    write_export(own.out, tmp_path / "faces", everything=True)
    assert len(Folders(tmp_path / "faces").samples("train")) == 7
