"""Table of all runs, as HTML and as Markdown."""

from markupsafe import Markup

from mien.training.faces import FaceSet
from mien.training.report.render import render
from mien.training.report.results import RunResult
from mien.training.wording import interval

_HEADINGS = (
    "run", "parameters", "epochs", "head", "accuracy", "mean class accuracy", "macro-F1", "ECE", "ECE, uncalibrated",
    "minutes", "images/s", "seed",
)  # fmt: skip


def _row(result: RunResult) -> tuple[str, ...]:
    """Cells as text, in the order of the headings; shares in percent with their intervals."""
    scores, history = result.evaluation, result.history
    done = int(history.epochs[-1])
    epochs = f"{done}" if done == result.recipe.epochs else f"{done} of {result.recipe.epochs}"
    return (
        result.name,
        f"{result.parameters / 1e6:.2f} M",
        epochs,
        result.head,
        interval(scores.accuracy, 1),
        interval(scores.mean_class_accuracy, 1),
        interval(scores.macro_f1, 1),
        interval(scores.ece, 1),
        interval(result.ece_raw, 1),
        f"{history.minutes:.1f}",
        f"{history.faces_per_s:.0f}",
        str(result.recipe.seed),
    )


def as_html(results: list[RunResult]) -> Markup:
    """Table for the HTML page."""
    return render("overview.html", headings=_HEADINGS, rows=[_row(result) for result in results])


def as_markdown(results: list[RunResult], faces: FaceSet) -> str:
    """Table for a Markdown document."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|" + "---|" * len(_HEADINGS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in map(_row, results)]
    return "\n".join([f"{faces.title}; shares in % with 95 % intervals over faces:", "", *lines])
