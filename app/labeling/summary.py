"""Summary of a run: what is printed of `run.json`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mien.app.inference.records import NOTES
from mien.app.labeling.files import quoted
from mien.app.wording import counted
from mien.data.quality import REASONS

_INSTALL: Final = re.compile(r"pip install ([a-z-]+)")


def next_steps(run: dict[str, Any], out: Path) -> dict[str, str]:
    """What to look at next, and where or with which command."""
    steps: dict[str, str] = {}
    for message, count in sorted(run["unsupported"].items()):
        if needed := _INSTALL.search(message):
            steps[f"read {counted(count, 'file')} with {needed[1]}"] = f"{needed[0]}, and rerun"
    if "report.html" in run["outputs"]:
        steps["look at the results"] = str(out / "report.html")
    if errors := run["images"]["error"]:
        tables = (name for name in ("report.html", "labels.csv", "labels.jsonl") if name in run["outputs"])
        if table := next(tables, None):
            steps[f"see why {counted(errors, 'file')} failed"] = f"{out / table}, errors"
    if run["faces"]:
        least = f"{counted(run['uncertain'], 'uncertain face')}, " if run["uncertain"] else ""
        steps[f"correct labels ({least}least certain first)"] = f"mien review {quoted(out)}"
    return steps


def print_summary(run: dict[str, Any], console: Console, out: Path) -> None:
    """Print the summary."""
    labels, faces = run["faces"], run["faces"].total()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for label in run["settings"].get("labels", "").split():
        share = labels[label] / faces if faces else 0.0
        table.add_row(label, f"{labels[label]:,}", f"{share:.0%}", "\N{FULL BLOCK}" * round(share * 40))
    console.print(table)
    for line in _lines(run, faces, out):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _lines(run: dict[str, Any], faces: int, out: Path) -> Iterator[str | Text]:  # noqa: C901  # one line per fact
    facts, statuses = run["settings"], run["images"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in run["skipped"].most_common())
    skipped = f"; {counted(statuses['skipped'], 'file')} skipped ({reasons})" if statuses["skipped"] else ""
    yield (
        f"\n{counted(faces, 'face')} in {counted(statuses.total() - statuses['skipped'], 'image')}; "
        f"{statuses['no_face']:,} without a face, {statuses['error']:,} with an error{skipped}"
    )
    for reason in REASONS:
        if count := run["reasons"][reason]:
            yield f"{count:,} of {counted(faces, 'face')} {'is' if count == 1 else 'are'} {reason}"
    for note, count in sorted(run["notes"].items()):
        yield f"{counted(count, 'image')}: {NOTES[note]}"
    if run["left"]:
        yield f"{counted(run['left'], 'file')} of the earlier run {'is' if run['left'] == 1 else 'are'} gone: removed"
    if run["reviewed"]:
        yield f"{run['reviewed']:,} of {counted(faces, 'face')} reviewed, {run['corrected']:,} of them corrected"
    if facts:
        yield f"detector {facts['detector']}, model {facts['model']} in {facts['precision']} on {facts['provider']}"
    if run["labeled_now"] and run["seconds_labeling"]:
        spent = sum(run["stage_seconds"].values()) or 1e-9
        shares = ", ".join(f"{stage} {value / spent:.0%}" for stage, value in run["stage_seconds"].items())
        rate = run["labeled_now"] / run["seconds_labeling"]
        yield f"{rate:.1f} images/s with {counted(run['workers'], 'worker')}: {shares}"
    if run["stopped"]:
        yield Text(
            f"\nStopped by {run['stopped']}. Results so far are kept: rerun the same command to resume.", "yellow"
        )
    elif run["remaining"]:
        remain = "input remains" if run["remaining"] == 1 else "inputs remain"
        reached = "because --limit was reached: rerun the command to continue."
        yield Text(f"\n{run['remaining']:,} {remain}, {reached}", "yellow")
    yield from (f"  {out / name}" for name in run["outputs"])
    if run["next"]:
        yield "\nNext:"
    yield from (f"  {step}: {command}" for step, command in run["next"].items())
