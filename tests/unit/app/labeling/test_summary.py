"""Summary of a run as text and as JSON."""

import io
from pathlib import Path

from rich.console import Console

from mien.app.labeling.summary import Outcome, print_summary, summary_facts

OUTCOME = Outcome(
    statuses={"ok": 5, "no_face": 2, "error": 1, "skipped": 3},
    labels={"happiness": 6, "neutral": 2},
    new=8,
    stage_seconds={"decode": 0.5, "classify": 1.5},
    seconds=4.0,
    workers=2,
    facts={"detector": "builtin", "model": "tiny.drawn", "precision": "int8", "provider": "CPUExecutionProvider"},
    remaining=0,
    stopped=None,
    written=[Path("labels.csv")],
)


def printed() -> str:
    console = Console(file=io.StringIO(), width=200)
    print_summary(OUTCOME, console)
    return console.file.getvalue()


def test_skipped_files_are_not_counted_as_images() -> None:
    assert summary_facts(OUTCOME)["images"] == 8
    assert "8 faces in 8 images; 2 without a face, 1 with an error; 3 files skipped" in printed()


def test_model_precision_and_provider_are_printed() -> None:
    assert "detector builtin, model tiny.drawn in int8 on CPUExecutionProvider" in printed()
    assert summary_facts(OUTCOME)["precision"] == "int8"


def test_the_speed_and_the_share_of_each_stage_are_printed() -> None:
    assert "2.0 images/s with 2 workers; 250.0 ms of work per image: decode 25%, classify 75%" in printed()
    assert summary_facts(OUTCOME)["images_per_s"] == 2.0
