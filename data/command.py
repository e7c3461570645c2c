"""Command line for data sets.

mien data check KIND ROOT [--option name=value] [--json]
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from mien.data.check import Report, check
from mien.data.contract import Array
from mien.data.errors import DatasetError
from mien.data.readers.base import Reader, kinds, open_reader, parse_options

app = typer.Typer(help="Inspect facial-expression data sets.", no_args_is_help=True, add_completion=False)


@app.callback()
def _commands() -> None:
    """Make typer treat `check` as a subcommand although it is the only one."""


@app.command("check")
def check_command(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help=f"One of: {', '.join(kinds())}.")],
    root: Annotated[Path, typer.Argument(help="Folder of the data set, its zip, or a folder with one zip.")],
    option: Annotated[list[str] | None, typer.Option(help="Reader option, name=value; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Count, decode and compare all images of a data set; exit with status 1 if there is a problem."""
    console, errors = Console(), Console(stderr=True)
    try:
        reader = open_reader(kind, root, **parse_options(option or []))
        with Progress(console=errors, transient=True) as bars:
            tasks = {split: bars.add_task(split, total=None) for split in reader.splits()}
            report = check(reader, lambda split, images: bars.advance(tasks[split], images), face_share=context.obj)
    except DatasetError as error:
        errors.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        _print_report(console, reader, report)
    raise typer.Exit(1 if report.problems else 0)


def _print_report(console: Console, reader: Reader, report: Report) -> None:
    table = Table("label", *(Column(split, justify="right") for split in report.counts))
    table.title, table.caption = f"{report.title}: {reader.root}", "found / published"
    for label in dict.fromkeys(label for counts in report.counts.values() for label in counts):
        table.add_row(label, *(_cell(report, split, label) for split in report.counts))
    table.add_section()
    table.add_row("all", *(_cell(report, split, None) for split in report.counts))
    table.add_row("left out", *(f"{sum(report.left_out[split].values()):,}" for split in report.counts))
    console.print(table)
    for split, reasons in report.left_out.items():
        if reasons:
            listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
            console.print(f"{split}: left out {listed}", markup=False, highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    for problem in report.problems:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False)
    if report.problems:
        console.print(f"{reader.title}: {reader.where_to_get}.", markup=False, highlight=False)
    else:
        console.print("no problems", style="green")


def _cell(report: Report, split: str, label: str | None) -> str:
    """Format found and published numbers of images of one label, or of all labels."""
    found, expected = report.counts[split], report.published.get(split)
    count = sum(found.values()) if label is None else found.get(label, 0)
    if expected is None:
        return f"{count:,}"
    published = sum(expected.values()) if label is None else expected[label]
    style = "green" if count == published else "red"
    return f"[{style}]{count:,}[/] / {published:,}"


def main(arguments: list[str], *, face_share: Callable[[Array], float] | None = None) -> None:
    """Command line `mien data`; exits with the status of the command. See `check` for `face_share`."""
    app(arguments, prog_name="mien data", obj=face_share)
