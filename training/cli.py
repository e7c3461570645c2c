"""Command lines of training. Its libraries are imported when a command runs, so that `--help` is immediate."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mien.data.atomic import write_atomic
from mien.data.errors import DatasetError, MienError
from mien.data.folds import Grouping
from mien.data.readers.base import parse_options
from mien.models.manifest import ARTIFACTS_DIR, POINTER, Precision, Prior, artifact_dir

if TYPE_CHECKING:
    from mien.training.config import DataSource

INTERRUPTED: Final = 130  # exit status, as in a shell after Ctrl-C
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _table(path: Path | None) -> Path | None:
    if path is not None and path.suffix not in (".csv", ".md"):
        raise typer.BadParameter(f"{path}: expected a name that ends with .csv or .md")
    return path


Data = Annotated[str, typer.Option(metavar="KIND=ROOT", help="Data set, such as ferplus=path/to/ferplus.")]
ReaderOptions = Annotated[list[str], typer.Option("--option", metavar="NAME=VALUE", help="Option of the reader.")]
Split = Annotated[str, typer.Option(help="Split to evaluate on.")]
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML file, such as those in training/recipes/.")]
Overrides = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE", help="Overrides, such as optim.learning_rate=3e-4.")
]
Out = Annotated[Path | None, typer.Option(help="Run folder, by default runs/<name>. An existing run is resumed.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Table = Annotated[Path | None, typer.Option(callback=_table, metavar="FILE", help="Also write the table: .csv, .md.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the results to this file.")]


@app.callback()
def _log_to_terminal(context: typer.Context) -> None:
    """Log what commands do that take long; of libraries errors only, as torch's exporter logs hundreds of lines."""
    if context.invoked_subcommand not in ("evaluate", "compare"):
        date = "%Y-%m-%d %H:%M:%S"
        logging.basicConfig(level=logging.ERROR, stream=sys.stdout, format="%(asctime)s %(message)s", datefmt=date)
        logging.getLogger("mien").setLevel(logging.INFO)


def _source(data: str, option: list[str], split: str) -> "DataSource":
    from mien.training.config import DataSource

    kind, equals, root = data.partition("=")
    if not equals:
        raise typer.BadParameter(f"--data {data!r}: expected KIND=ROOT, for example ferplus=path/to/ferplus")
    return DataSource(kind=kind, root=Path(root), split=split, options=parse_options(option))


@app.command()
def train(
    recipe: RecipeFile,
    overrides: Overrides = [],
    out: Out = None,
    every_face: Annotated[
        bool, typer.Option("--all", help="Train on the validation faces, too, and keep the last epoch.")
    ] = False,
) -> None:
    """Train one network from a recipe."""
    from mien.training import config

    read = config.read_as(config.Recipe, recipe, overrides)
    read = config.with_all_faces(read) if every_face else read
    from mien.training.train import train  # It takes seconds, and a mistyped key none.

    train(read, out or Path("runs") / read.name)


@app.command()
def evaluate(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Artifact or run folder, or the name of a model; several: also their mean."
        ),
    ],
    data: Data,
    option: ReaderOptions = [],
    split: Split = "valid",
    precision: Annotated[Precision, typer.Option(help="Graph of an artifact.")] = "fp32",
    json_file: Json = None,
    table: Table = None,
    predictions: Annotated[
        Path | None,
        typer.Option(callback=_table, metavar="FILE", help="Also write label and probabilities of each face."),
    ] = None,
    corruptions: Annotated[bool, typer.Option("--corruptions", help="Also measure corrupted faces.")] = False,
    faces: Annotated[int | None, typer.Option(min=1, help="Random faces to corrupt, by default all.")] = None,
) -> None:
    """Evaluate a released artifact or a run, or several, such as seeds, without their calibration."""
    if faces and not corruptions:
        raise typer.BadParameter("--faces is an option of --corruptions")
    if (predictions or corruptions) and len(model) > 1:
        raise typer.BadParameter("--predictions and --corruptions are of one model")
    from mien.training.data import read_split
    from mien.training.evaluate import open_model, predictions_table, scores_of_model
    from mien.training.metrics import print_table, scores_table, write_results, write_table

    models = [open_model(artifact_dir(name), precision) for name in model]
    first, *others = models
    read = read_split(_source(data, option, split), classes=first.labels, of=first.name)
    if different := [other.name for other in others if other.labels != first.labels]:
        raise DatasetError(f"{', '.join(different)}: other classes than {first.name}")
    logits = [each.logits(read.crops) for each in models]
    scores = [scores_of_model(each, read, of_model) for each, of_model in zip(models, logits, strict=True)]
    titles = [each.name for each in models] if others else first.priors
    columns = [of_model[0] for of_model in scores] if others else scores[0]
    heads, rows = scores_table(titles, columns, mean=bool(others))
    print_table(heads, rows, title=read.title if others else f"{first.name} on {read.title}")
    results: dict[str, Any] = {
        "labels": first.labels,
        "scores": [{"model": each.name} | of for each, of_model in zip(models, scores, strict=True) for of in of_model],
        "warnings": [warning for each in models if (warning := each.warn(read))],
    }
    if predictions:
        prior = first.priors[-1]
        write_table(predictions, *predictions_table(read, first.probabilities(logits[0], read, prior)))
    if corruptions:
        from mien.training import robustness

        results["corruptions"] = robustness.measure(first, read.sample(faces or len(read)))
    write_results(results, json_file=json_file, table=table, heads=heads, rows=rows)


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="Artifact or run folder, or the name of a model, such as fast.")],
    after: Annotated[str, typer.Argument(help="Artifact or run folder, or the name of a model.")],
    data: Data,
    option: ReaderOptions = [],
    split: Split = "valid",
    prior: Annotated[Prior, typer.Option(help="Prior of artifacts.")] = "balanced",
    json_file: Json = None,
    table: Table = None,
) -> None:
    """Compare two artifacts or runs."""
    from mien.training.data import in_order, read_split
    from mien.training.evaluate import gains, open_model, scores
    from mien.training.metrics import MIN_FACES, print_table, scores_table, write_results

    models = [open_model(artifact_dir(name)) for name in (before, after)]
    if set.isdisjoint(*(set(model.labels) for model in models)):
        raise DatasetError(f"{models[0].name} and {models[1].name} have no class in common")
    classes = tuple(dict.fromkeys(label for model in models for label in model.labels))
    faces = read_split(_source(data, option, split), classes=classes, of="the pair of models")
    sides = [
        in_order(model.probabilities(model.logits(faces.crops), faces, prior), model.labels, classes)
        for model in models
    ]
    columns: list[dict[str, Any]] = []
    for side, model, probabilities in zip(("before", "after"), models, sides, strict=True):
        columns.append(scores(faces, probabilities, prior=prior if model.manifest else "natural"))
        print(f"{side}: {model.name}, {columns[-1]['prior']}")
    columns.append(gains(sides[0], sides[1], faces.labels, classes))
    heads, rows = scores_table(("before", "after", "gain"), columns)
    print_table(heads, rows, title=f"{faces.title}; gains of {MIN_FACES} faces or more, paired by face")
    results = {"before": models[0].name, "after": models[1].name, "scores": columns[:2], "gains": columns[2]}
    write_results(results, json_file=json_file, table=table, heads=heads, rows=rows)
    for model in models:
        model.warn(faces)


@app.command()
def cross_validate(
    recipe: RecipeFile,
    overrides: Overrides = [],
    folds: Annotated[int, typer.Option(min=2)] = 5,
    group_by: Annotated[Grouping, typer.Option(help="What stays in one fold.")] = "none",
    runs: Runs = Path("runs/cross_validation"),
    json_file: Json = None,
    table: Table = None,
) -> None:
    """Cross-validate a recipe."""
    from mien.training import config

    read = config.read_as(config.Recipe, recipe, overrides)
    from mien.training import experiment
    from mien.training.metrics import percent, print_table, scores_table, write_results

    found = experiment.cross_validate(read, folds=folds, group_by=group_by, runs=runs)
    heads, rows = scores_table([f"{found['faces']:,} faces"], [found])
    print_table(heads, rows, title=f"{read.name}, {folds} folds")
    by_fold = [percent(share, 2) for share in found["accuracy_by_fold"]]
    print(f"accuracy by fold, %: {', '.join(by_fold)}")
    rows += [[f"accuracy, fold {fold}", share] for fold, share in enumerate(by_fold)]
    write_results(found, json_file=json_file, table=table, heads=heads, rows=rows)


@app.command()
def experiment(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="File in training/recipes/experiments/.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Seeds 0 to N-1.")] = 1,
    runs: Runs = Path("runs/experiments"),
    json_file: Json = None,
    table: Table = None,
) -> None:
    """Train rows and compare them."""
    from mien.training.experiment import as_table, recipes_of, run
    from mien.training.metrics import markdown_table, write_results

    results = run(recipes_of(file, runs=runs, seeds=seeds), runs)
    heads, rows = as_table(results)
    print(markdown_table(heads, rows))
    write_results(results, json_file=json_file, table=table, heads=heads, rows=rows)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Run or artifact folder.")],
    tag: Annotated[str | None, typer.Option(help="Distinguishes releases, such as ferplus_v1.")] = None,
    arch: Annotated[str | None, typer.Option(help="First part of the name, by default from the recipe.")] = None,
    tau: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Weight of the correction for rare classes, by default fitted on validation."),
    ] = None,
    calibrated_by: Annotated[
        Path | None,
        typer.Option(metavar="ARTIFACT", help="Of a run of all faces: take temperature and threshold from this one."),
    ] = None,
    artifacts: Annotated[Path, typer.Option(help="Parent folder of artifacts.")] = ARTIFACTS_DIR,
    default: Annotated[bool, typer.Option("--default", help="Make it the model that serving loads.")] = False,
    refit: Annotated[bool, typer.Option("--refit", help="Fit and evaluate the artifact FOLDER again.")] = False,
    photos: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write photo graphs, license and card of the artifact FOLDER again; compare on photos."
        ),
    ] = None,
) -> None:
    """Release a run as an artifact."""
    if refit + bool(photos) + bool(tag) != 1:
        raise typer.BadParameter("use --tag to release a run, or --refit or --photos with an artifact")
    if ((arch or calibrated_by) and not tag) or (tau is not None and not (tag or refit)):
        raise typer.BadParameter("--arch and --calibrated-by need --tag; --tau needs --tag or --refit")
    if default and not tag and folder.resolve().parent != artifacts.resolve():
        raise typer.BadParameter(f"--default is for an artifact in {artifacts}; {folder} is not there")
    from mien.training import export as command

    if tag:
        folder = command.export(folder, tag, arch=arch, artifacts_dir=artifacts, tau=tau, calibrated_by=calibrated_by)
    else:
        command.refit(folder, tau=tau, photos=photos)
    logger = logging.getLogger("mien.training")
    logger.info("wrote %s", folder)
    if default:
        path = artifacts / POINTER
        before = path.read_text(encoding="utf-8").strip() if path.exists() else "none"
        write_atomic(path, folder.name + "\n")
        logger.info("%s: the default is now %s, before %s", path, folder.name, before)


@app.command()
def quantize(
    artifact: Annotated[Path, typer.Argument(help="Folder with manifest.json.")],
    data: Data,
) -> None:
    """Add an int8 graph to an artifact if it labels nearly as fp32 does."""
    from mien.training.quantize import run

    source = _source(data, [], "train")
    run(artifact, source.kind, source.resolved_root())


def main(arguments: list[str]) -> int:
    """Run a command, such as `["train", "recipe.yaml"]`, and return its exit status."""
    try:
        app(arguments, prog_name="mien")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("interrupted; rerun the same command to resume", file=sys.stderr)
        return int(end.code or 0)
    except (MienError, OSError) as error:  # The system raises OSError: a full disk, no permission.
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
