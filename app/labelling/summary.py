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
        "pictures": sum(outcome.statuses.values()),
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
    pictures = sum(outcome.statuses.values())
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for label in LABELS:
        count = outcome.labels.get(label, 0)
        share = count / faces if faces else 0.0
        table.add_row(label, f"{count:,}", f"{share:.0%}", "\N{FULL BLOCK}" * round(share * 40))
    console.print(table)
    console.print(
        f"\n{faces:,} faces in {pictures:,} pictures; {outcome.statuses.get('no_face', 0):,} without a face, "
        f"{outcome.statuses.get('error', 0):,} with an error, {outcome.statuses.get('skipped', 0):,} no pictures",
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


def _speed(outcome: Outcome) -> str:
    """Pictures per second, and the share of each stage in the time of all workers."""
    new = outcome.tally.pictures
    spent = sum(outcome.tally.seconds.values()) or 1e-9
    shares = ", ".join(f"{stage} {value / spent:.0%}" for stage, value in outcome.tally.seconds.items())
    rate = f"{new / outcome.seconds:.1f} images/s with {outcome.workers} worker{'s' if outcome.workers > 1 else ''}"
    return f"{rate}; {1000 * spent / new:.1f} ms of work a picture: {shares}"
