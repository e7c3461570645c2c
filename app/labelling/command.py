"""What does `mien label` print, and with which code does it leave? The command around `app.labelling.run`."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console

from app.cli_support import DISK_FULL, FAILED, LOCKED, SOME_ERRORS, STOPPED
from app.errors import MienError
from app.labelling.containers import Sampling
from app.labelling.files import DiskFull, LabellingError, OutputLocked
from app.labelling.outputs import DEFAULT, load_output, output_names
from app.labelling.products import ProductOptions
from app.labelling.progress import Mode, Reporter, reporter
from app.labelling.run import Outcome, Request, check_outputs, label, sources_of
from app.labelling.scan import ScanOptions, Symlinks
from app.labelling.summary import print_summary, summary_facts
from app.settings import Settings, load_settings
from models.manifest import ArtefactError

_LIST_ENCODING: Final = "utf-8"


@dataclass(frozen=True, slots=True)
class Call:
    """The options of `mien label` as they were given; see their help."""

    inputs: tuple[str, ...]
    files_from: str | None
    null: bool
    out: Path
    write: tuple[str, ...]
    recursive: bool
    ignore: tuple[str, ...]
    hidden: bool
    symlinks: Symlinks
    every: int
    per_second: float | None
    limit: int | None
    dry_run: bool
    check_hashes: bool
    annotated_px: int
    workers: int
    settings: dict[str, Any]
    mode: Mode
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    partition_files: int | None = None


def print_outputs() -> None:
    """List the outputs with a line each; those written by default are marked."""
    console = Console()
    for name in output_names():
        mark = "*" if name in DEFAULT else " "
        console.print(f"{mark} {name:<14} {load_output(name).HELP}", highlight=False, markup=False)
    console.print("* written when --write is not given", style="dim")


def run(call: Call) -> int:
    """Run the command; returns the exit code."""
    logging.basicConfig(level=logging.ERROR if call.mode == "quiet" else logging.WARNING, format="mien: %(message)s")
    try:
        request = _request(call)
        _check_engine(call)
        if call.dry_run:
            return _dry_run(request, call.mode)
        return _run(request, call)
    except OutputLocked as error:
        return _failed(error, LOCKED, call.mode)
    except DiskFull as error:
        return _failed(error, DISK_FULL, call.mode)
    except (MienError, ArtefactError) as error:
        return _failed(error, FAILED, call.mode)
    except KeyboardInterrupt:
        return 130


def _run(request: Request, call: Call) -> int:
    console = Console(stderr=True)
    settings = load_settings(**call.settings)
    with reporter(call.mode, console) as report:
        outcome = _on_ray(request, settings, report, call) if call.engine == "ray" else label(request, settings, report)
    if call.mode == "json":
        _log("summary", **summary_facts(outcome))
    elif call.mode == "bar":
        print_summary(outcome, Console())
    return exit_code(outcome)


def _on_ray(request: Request, settings: Settings, report: Reporter, call: Call) -> Outcome:
    from app.labelling.ray_engine import PARTITION, Cluster, label_on_ray

    return label_on_ray(request, settings, report, Cluster(call.ray_address, call.partition_files or PARTITION))


def _check_engine(call: Call) -> None:
    """Refuse options that the engine has no use for. Raises: LabellingError."""
    if call.engine == "local":
        if call.ray_address is not None or call.partition_files is not None:
            raise LabellingError("--ray-address and --partition-files are for --engine ray.")
        return
    from app.labelling.ray_engine import check

    check(call.write, asked=bool(call.write))
    if call.limit is not None or call.check_hashes:
        raise LabellingError("--engine ray knows neither --limit nor --check-hashes: leave them out.")


def exit_code(outcome: Outcome) -> int:
    """0, or why it is not: stopped before the end, or some files have errors."""
    if outcome.stopped:
        return STOPPED
    return SOME_ERRORS if outcome.statuses.get("error") else 0


def _request(call: Call) -> Request:
    sampling = Sampling(call.every, call.per_second)
    return Request(
        out=call.out,
        inputs=call.inputs,
        listed=None if call.files_from is None else lambda: _listed(str(call.files_from), null=call.null),
        outputs=tuple(dict.fromkeys(call.write)) or (("parquet",) if call.engine == "ray" else DEFAULT),
        scan=ScanOptions(
            recursive=call.recursive,
            hidden=call.hidden,
            ignore=call.ignore,
            symlinks=call.symlinks,
            sampling=sampling.describe(),
            exclude=(call.out,),
        ),
        sampling=sampling,
        products=ProductOptions(annotated_px=call.annotated_px),
        limit=call.limit,
        workers=call.workers,
        check_hashes=call.check_hashes,
    )


def _listed(source: str, *, null: bool) -> Iterator[str]:
    """Names from a file or standard input; bytes that are no UTF-8 are kept as the system keeps them."""
    try:
        stream = sys.stdin.buffer if source == "-" else Path(source).open("rb")  # noqa: SIM115  # read to its end below
    except OSError as error:
        raise LabellingError(f"--files-from {source}: {error.strerror}.") from error
    rest = b""
    ending = b"\0" if null else b"\n"
    with stream:
        while block := stream.read(1 << 16):
            *names, rest = (rest + block).split(ending)
            yield from _names(names, null=null)
        yield from _names([rest], null=null)


def _names(raw: list[bytes], *, null: bool) -> Iterator[str]:
    for name in raw:
        trimmed = name if null else name.rstrip(b"\r")
        if trimmed:
            yield trimmed.decode(_LIST_ENCODING, "surrogateescape")


def _dry_run(request: Request, mode: Mode) -> int:
    """Scan only: how many inputs of which kind, and what is already known to be wrong."""
    check_outputs(request.outputs)
    kinds: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    size = 0
    for source in sources_of(request):
        size += source.size
        if source.failure is None:
            kinds[source.kind] += 1
        else:
            failures[source.failure.reason] += 1
    if mode == "json":
        _log("dry_run", kinds=kinds, failures=failures, bytes=size)
        return 0
    console = Console()
    for kind, count in sorted(kinds.items()):
        console.print(f"{count:>12,} {_KINDS[kind]}", highlight=False)
    for reason, count in sorted(failures.items()):
        console.print(f"{count:>12,} that cannot be read: {reason}", highlight=False)
    console.print(f"{size / 1e6:>12,.1f} MB in all. Nothing was written.", highlight=False)
    return 0


_KINDS: Final = {"file": "files", "zip": "zip archives", "tar": "tar archives", "video": "videos"}


def _failed(error: Exception, code: int, mode: Mode) -> int:
    if mode == "json":
        _log("failed", error=str(error), code=code)
    else:
        sys.stderr.write(f"mien: {error}\n")
    return code


def _log(event: str, **facts: Any) -> None:
    sys.stderr.write(json.dumps({"event": event} | facts, ensure_ascii=False) + "\n")
