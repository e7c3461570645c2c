"""Messages and exit codes of `mien label`, around `app.labeling.run`."""

import logging
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any, Final

from rich.console import Console

from mien.app.cli.exit_codes import DISK_FULL, FAILED, LOCKED, SOME_ERRORS, STOPPED, stopped_by
from mien.app.labeling.files import DiskFull, LabelingError, OutputLocked
from mien.app.labeling.json_stderr import json_stderr
from mien.app.labeling.outputs import check_outputs, load_output, output_names
from mien.app.labeling.progress import JsonLog, reporter
from mien.app.labeling.request import DEFAULT_OUTPUTS, Request
from mien.app.labeling.run import Outcome, label
from mien.app.labeling.scan import NothingKnown, sources_of
from mien.app.labeling.signals import Interrupts
from mien.app.labeling.summary import print_summary, summary_facts
from mien.app.settings import Settings, load_settings
from mien.data.errors import MienError

_CODES: Final[dict[type[MienError], int]] = {OutputLocked: LOCKED, DiskFull: DISK_FULL}
_KINDS: Final = {"file": "files", "zip": "zip archives", "tar": "tar archives", "video": "videos"}


def print_outputs() -> None:
    """List the outputs, one per line, with the default ones marked."""
    console = Console()
    for name in output_names():
        mark = "*" if name in DEFAULT_OUTPUTS else " "
        console.print(f"{mark} {name:<14} {load_output(name).HELP}", highlight=False, markup=False)
    console.print("* written by default", style="dim")


def run(request: Request, settings: Mapping[str, Any], signals: Interrupts) -> int:
    """Run the command; returns the exit code."""
    if request.messages == "json":
        with json_stderr() as stream:
            return _guarded(request, settings, signals, stream)
    return _guarded(request, settings, signals, None)


def _guarded(request: Request, settings: Mapping[str, Any], signals: Interrupts, stream: IO[str] | None) -> int:
    level = logging.ERROR if request.messages == "quiet" else logging.WARNING
    logging.basicConfig(level=level, format="mien: %(message)s")
    try:
        _check_engine(request)
        if request.dry_run:
            return _dry_run(request, stream)
        return _run(request, load_settings(**settings), signals, stream)
    except KeyboardInterrupt:
        return 130
    except MienError as error:
        return _failed(request, stream, str(error), _CODES.get(type(error), FAILED))
    except BaseException:
        # not only Stopped: a native library may replace it by another exception during its import
        if signals.received is not None:
            return _failed(request, stream, stopped_by(signals.received), STOPPED)
        if request.messages != "json":
            raise
        return _failed(request, stream, traceback.format_exc(), FAILED)


def _failed(request: Request, stream: IO[str] | None, message: str, code: int) -> int:
    if request.messages == "json":
        JsonLog(stream).log("failed", error=message, code=code)
    else:
        sys.stderr.write(f"mien: {message}\n")
    return code


def _run(request: Request, settings: Settings, signals: Interrupts, stream: IO[str] | None) -> int:
    with reporter(request.messages, Console(stderr=True), stream) as report:
        if request.engine == "ray":
            from mien.app.labeling.ray.engine import label_on_ray

            outcome = label_on_ray(request, settings, report, signals)
        else:
            outcome = label(request, settings, report, signals)
    if request.messages == "json":
        JsonLog(stream).log("summary", **summary_facts(outcome))
    elif request.messages == "bar":
        print_summary(outcome, Console())
    return exit_code(outcome)


def _check_engine(request: Request) -> None:
    """Reject options of the other engine. Raises: LabelingError."""
    if request.engine == "local":
        if request.ray_address is not None or request.partition_files is not None:
            raise LabelingError("--ray-address and --partition-files need --engine ray.")
        return
    from mien.app.labeling.ray.engine import check

    check(request)


def exit_code(outcome: Outcome) -> int:
    """Exit code of a completed or stopped run."""
    if outcome.stopped:
        return STOPPED
    return SOME_ERRORS if outcome.statuses.get("error") else 0


def _dry_run(request: Request, stream: IO[str] | None) -> int:
    """Scan only: print the number of inputs by kind, and of files that cannot be read."""
    check_outputs(request.outputs)
    kinds: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    size = 0
    for source in sources_of(request, NothingKnown()):
        size += source.size
        if source.failure is None:
            kinds[source.kind] += 1
        else:
            failures[source.failure.reason] += 1
    if request.messages == "json":
        JsonLog(stream).log("dry_run", kinds=kinds, failures=failures, bytes=size)
        return 0
    console = Console()
    for kind, count in sorted(kinds.items()):
        console.print(f"{count:>12,} {_KINDS[kind]}", highlight=False)
    for reason, count in sorted(failures.items()):
        console.print(f"{count:>12,} unreadable: {reason}", highlight=False)
    console.print(f"{size / 1e6:>12,.1f} MB in total. Nothing was written.", highlight=False)
    return 0
