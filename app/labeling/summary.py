"""Outcome of a run, and its summary: labels, errors and time per stage."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mien.app.inference.records import NOTES
from mien.app.labeling.corrections import Corrections
from mien.app.labeling.files import quoted
from mien.app.labeling.journal import Journal
from mien.app.wording import counted
from mien.data.quality import REASONS

_INSTALL: Final = re.compile(r"pip install ([a-z-]+)")


@dataclass(slots=True)
class Outcome:
    """Outcome of a run for the summary and the exit code.

    Attributes:
        new: images labeled in this run; remaining: not labeled because of a limit or a stop.
        seconds: time for labeling only; total_seconds: including the scan and writing the outputs, after the models
            are opened; stage_seconds: thread time.
        stopped: name of a signal.
        skipped: skipped files per reason.
        statuses: images per status; labels: faces per label; uncertain: faces below the confidence threshold.
        reviewed, corrected: faces with a decision of a person, and with another label than the predicted one.
        reasons: faces per reason for doubt.
        notes: images per note.
        unsupported: files in formats that are not read, by message.
        next_steps: what to look at next, and where or with which command.
    """

    new: int = 0
    remaining: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    stage_seconds: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    stopped: str | None = None
    statuses: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    uncertain: int = 0
    reviewed: int = 0
    corrected: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    unsupported: Counter[str] = field(default_factory=Counter)
    facts: dict[str, str] = field(default_factory=dict)
    workers: int = 1
    written: list[Path] = field(default_factory=list)
    next_steps: dict[str, str] = field(default_factory=dict)

    def count(self, journal: Journal, images: int = 0) -> None:
        """Count the results of a journal; images: a bit mask of those that are written."""
        self.statuses, self.labels, self.remaining = journal.counts(), journal.labels(), journal.remaining(images)
        self.skipped = journal.skipped()
        self.uncertain, self.reasons = journal.uncertain(), journal.reasons()
        self.notes, self.unsupported = journal.notes(), journal.unsupported()
        self.reviewed, self.corrected = Corrections(journal.out).count(journal)

    def suggest(self, out: Path) -> None:
        """Set what to look at next."""
        names, folder = {path.name for path in self.written}, quoted(out)
        for message, count in sorted(self.unsupported.items()):
            if needed := _INSTALL.search(message):
                self.next_steps[f"read {counted(count, 'file')} with {needed[1]}"] = f"{needed[0]}, and rerun"
        if "report.html" in names:
            self.next_steps["look at the results"] = str(out / "report.html")
        if errors := self.statuses["error"]:
            tables = ("report.html", "labels.csv", "labels.jsonl")
            if table := next((name for name in tables if name in names), None):
                self.next_steps[f"see why {counted(errors, 'file')} failed"] = f"{out / table}, errors"
        if self.labels:
            least = f"{counted(self.uncertain, 'uncertain face')}, " if self.uncertain else ""
            self.next_steps[f"correct labels ({least}least certain first)"] = f"mien review {folder}"

    @property
    def expressions(self) -> list[str]:
        """Labels of the model."""
        return self.facts.get("labels", "").split()


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print the summary."""
    faces = outcome.labels.total()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for label in outcome.expressions:
        count = outcome.labels[label]
        share = count / faces if faces else 0.0
        table.add_row(label, f"{count:,}", f"{share:.0%}", "\N{FULL BLOCK}" * round(share * 40))
    console.print(table)
    for line in _lines(outcome, faces):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _doubts(outcome: Outcome, faces: int) -> Iterator[str]:
    """Numbers of faces with reasons for doubt, and of images with notes."""
    for reason in REASONS:
        if count := outcome.reasons[reason]:
            yield f"{count:,} of {counted(faces, 'face')} {'is' if count == 1 else 'are'} {reason}"
    for note, count in sorted(outcome.notes.items()):
        yield f"{counted(count, 'image')}: {NOTES[note]}"


def _lines(outcome: Outcome, faces: int) -> Iterator[str | Text]:
    facts, statuses = outcome.facts, outcome.statuses
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.skipped.most_common())
    skipped = f"; {counted(statuses['skipped'], 'file')} skipped ({reasons})" if statuses["skipped"] else ""
    yield (
        f"\n{counted(faces, 'face')} in {counted(statuses.total() - statuses['skipped'], 'image')}; "
        f"{statuses['no_face']:,} without a face, {statuses['error']:,} with an error{skipped}"
    )
    yield from _doubts(outcome, faces)
    if outcome.reviewed:
        yield f"{outcome.reviewed:,} of {counted(faces, 'face')} reviewed, {outcome.corrected:,} of them corrected"
    if facts:
        yield f"detector {facts['detector']}, model {facts['model']} in {facts['precision']} on {facts['provider']}"
    if outcome.new and outcome.seconds:
        spent = sum(outcome.stage_seconds.values()) or 1e-9
        shares = ", ".join(f"{stage} {value / spent:.0%}" for stage, value in outcome.stage_seconds.items())
        yield f"{outcome.new / outcome.seconds:.1f} images/s with {counted(outcome.workers, 'worker')}: {shares}"
    if outcome.stopped:
        yield Text(
            f"\nStopped by {outcome.stopped}. Results so far are kept: rerun the same command to resume.", "yellow"
        )
    elif outcome.remaining:
        remain = "input remains" if outcome.remaining == 1 else "inputs remain"
        reached = "because --limit was reached: rerun the command to continue."
        yield Text(f"\n{outcome.remaining:,} {remain}, {reached}", "yellow")
    yield from (f"  {path}" for path in outcome.written)
    if outcome.next_steps:
        yield "\nNext:"
    yield from (f"  {step}: {command}" for step, command in outcome.next_steps.items())
