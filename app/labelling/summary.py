"""What does a person want to know when a run has ended? One screen: labels, errors, where the time went."""

from typing import Any

from rich.console import Console
from rich.table import Table

from app.labelling.run import Outcome
from data.contract import LABELS


def summary_facts(outcome: Outcome) -> dict[str, Any]:
    """The summary as data, for `--json-log`."""
    new = outcome.tally.pictures
    return {
        "pictures": _pictures(outcome),
        "new": new,
        "faces": sum(outcome.labels.values()),
        "labels": {label: outcome.labels.get(label, 0) for label in LABELS},
        "statuses": outcome.statuses,
        "seconds": round(outcome.seconds, 3),
        "images_per_s": round(new / outcome.seconds, 1) if outcome.seconds and new else None,
        "stage_seconds": {stage: round(value, 3) for stage, value in outcome.tally.seconds.items()},
        "detector": outcome.detector,
        "model": outcome.model,
        "provider": outcome.provider,
        "stopped": outcome.stopped,
        "written": [str(path) for path in outcome.written],
    }


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print the summary for people."""
    faces = sum(outcome.labels.values())
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for label in LABELS:
        count = outcome.labels.get(label, 0)
        share = count / faces if faces else 0.0
        table.add_row(label, f"{count:,}", f"{share:.0%}", "\N{FULL BLOCK}" * round(share * 40))
    console.print(table)
    found = {status: f"{outcome.statuses.get(status, 0):,}" for status in ("no_face", "error", "skipped")}
    others = f"; {found['skipped']} files are no pictures" if outcome.statuses.get("skipped") else ""
    console.print(
        f"\n{faces:,} faces in {_pictures(outcome):,} pictures; {found['no_face']} without a face, "
        f"{found['error']} with an error{others}",
        highlight=False,
    )
    console.print(f"detector {outcome.detector}, model {outcome.model} on {outcome.provider}", highlight=False)
    if outcome.tally.pictures and outcome.seconds:
        console.print(_speed(outcome), highlight=False)
    if outcome.stopped:
        console.print(
            f"\nStopped by {outcome.stopped}; all that is done is kept. Run the same command again to go on.",
            style="yellow",
        )
    for path in outcome.written:
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def _pictures(outcome: Outcome) -> int:
    return sum(count for status, count in outcome.statuses.items() if status != "skipped")


def _speed(outcome: Outcome) -> str:
    """Pictures per second, and the share of each stage in the time of all workers."""
    new = outcome.tally.pictures
    spent = sum(outcome.tally.seconds.values()) or 1e-9
    shares = ", ".join(f"{stage} {value / spent:.0%}" for stage, value in outcome.tally.seconds.items())
    rate = f"{new / outcome.seconds:.1f} images/s with {outcome.workers} worker{'s' if outcome.workers > 1 else ''}"
    return f"{rate}; {1000 * spent / new:.1f} ms of work a picture: {shares}"
