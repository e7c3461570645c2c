"""Summary of a run: labels, errors and time per stage."""

from typing import Any

from rich.console import Console
from rich.table import Table

from mien.app.labeling.records import images_of
from mien.app.labeling.run import Outcome


def summary_facts(outcome: Outcome) -> dict[str, Any]:
    """Summary as data, for `--json-log`."""
    new = outcome.tally.images
    return {
        "images": images_of(outcome.statuses),
        "new": new,
        "faces": sum(outcome.labels.values()),
        "labels": {label: outcome.labels.get(label, 0) for label in _expressions(outcome)},
        "statuses": outcome.statuses,
        "seconds": round(outcome.seconds, 3),
        "images_per_s": round(new / outcome.seconds, 1) if outcome.seconds and new else None,
        "stage_seconds": {stage: round(value, 3) for stage, value in outcome.tally.seconds.items()},
        "detector": outcome.facts.get("detector"),
        "model": outcome.facts.get("model"),
        "provider": outcome.facts.get("provider"),
        "precision": outcome.facts.get("precision"),
        "remaining": outcome.remaining,
        "stopped": outcome.stopped,
        "written": [str(path) for path in outcome.written],
    }


def _expressions(outcome: Outcome) -> list[str]:
    return outcome.facts.get("labels", "").split()


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print the summary."""
    faces = sum(outcome.labels.values())
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for label in _expressions(outcome):
        count = outcome.labels.get(label, 0)
        share = count / faces if faces else 0.0
        table.add_row(label, f"{count:,}", f"{share:.0%}", "\N{FULL BLOCK}" * round(share * 40))
    console.print(table)
    found = {status: f"{outcome.statuses.get(status, 0):,}" for status in ("no_face", "error", "skipped")}
    others = f"; {found['skipped']} files skipped" if outcome.statuses.get("skipped") else ""
    console.print(
        f"\n{faces:,} faces in {images_of(outcome.statuses):,} images; {found['no_face']} without a face, "
        f"{found['error']} with an error{others}",
        highlight=False,
    )
    facts = outcome.facts
    if facts:
        text = f"detector {facts['detector']}, model {facts['model']} in {facts['precision']} on {facts['provider']}"
        console.print(text, highlight=False, soft_wrap=True)
    if outcome.tally.images and outcome.seconds:
        console.print(_speed(outcome), highlight=False)
    if outcome.stopped:
        console.print(
            f"\nStopped by {outcome.stopped}. Results so far are kept: rerun the same command to resume.",
            style="yellow",
            soft_wrap=True,
        )
    elif outcome.remaining:
        console.print(
            f"\n{outcome.remaining:,} inputs remain, because --limit was reached: rerun the command to continue.",
            style="yellow",
            soft_wrap=True,
        )
    for path in outcome.written:
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def _speed(outcome: Outcome) -> str:
    """Images per second, and the share of each stage in the worker time."""
    new = outcome.tally.images
    spent = sum(outcome.tally.seconds.values()) or 1e-9
    shares = ", ".join(f"{stage} {value / spent:.0%}" for stage, value in outcome.tally.seconds.items())
    rate = f"{new / outcome.seconds:.1f} images/s with {outcome.workers} worker{'s' if outcome.workers > 1 else ''}"
    return f"{rate}; {1000 * spent / new:.1f} ms of work per image: {shares}"
