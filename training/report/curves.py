"""Learning curves of single runs and of all runs together."""

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mien.training.config import DataSource
from mien.training.report import plot
from mien.training.report.history import History, smooth
from mien.training.report.render import Section, side_by_side
from mien.training.report.results import RunResult
from mien.training.wording import percent


def section(result: RunResult, *, key: str) -> Section:
    """Losses, and both validation accuracies by epoch."""
    history = result.history
    body = side_by_side(_loss(history, key), _validation(result, key))
    note = (
        f"Loss: running mean over 15 logged steps. Validation: after each epoch, with averaged weights (EMA) and the "
        f"best head. Epoch {result.best_epoch} was selected for the highest "
        f"{result.recipe.select.replace('_', ' ')}."
    )
    return Section("curves", "Learning curves", note, body)


def _loss(history: History, key: str) -> Markup:
    with plot.style():
        drawn = plot.figure()
        axes = drawn.subplots()
        for number, (part, values) in enumerate(history.loss.items()):
            axes.plot(history.position, values, color=plot.SERIES[number], alpha=0.2, linewidth=0.8)
            axes.plot(history.position, smooth(values), label=part, **plot.series(number))
        _finish(axes, "training loss")
        if len(history.loss) > 1:
            drawn.legend(loc="outside lower left", ncols=2)
    last = ", ".join(f"{part} {smooth(values)[-1]:.3f}" for part, values in history.loss.items())
    return plot.svg(drawn, name=f"{key}-loss", label=f"Training loss by epoch; at the end {last}")


def _validation(result: RunResult, key: str) -> Markup:
    history = result.history
    with plot.style():
        drawn = plot.figure()
        axes = drawn.subplots()
        if history.training_accuracy is not None:
            seen = smooth(history.training_accuracy)
            axes.plot(history.position, seen, label="accuracy on augmented training faces", **plot.series(5))
        for number, (name, values) in enumerate(
            {"accuracy": history.accuracy, "mean class accuracy": history.mean_class_accuracy}.items()
        ):
            axes.plot(history.epochs, values, marker="o", markersize=3, label=name, **plot.series(number))
        axes.axvline(result.best_epoch, color=plot.MUTED, linewidth=0.8, linestyle=":")
        plot.percent_axis(axes.yaxis)
        _finish(axes, "validation accuracy, %")
        drawn.legend(loc="outside lower left")
    label = f"Validation accuracy by epoch, {percent(history.accuracy.max())} percent at best"
    return plot.svg(drawn, name=f"{key}-validation", label=label)


def validation_note(results: list[RunResult], shown: str) -> str:
    """Note about runs that were validated on different sets; "" if all used the same set.

    Args:
        results: the runs.
        shown: title of the faces in the table.
    """
    sets = {result.name: validation_set(result.recipe.data.valid) for result in results}
    if len(set(sets.values())) == 1:
        return ""
    listed = "; ".join(f"{name}: {title}" for name, title in sets.items())
    return (
        f"These runs were validated on different data, so their curves are not comparable: {listed}. The table "
        f"evaluates all of them on {shown}."
    )


def validation_set(source: DataSource) -> str:
    """Name of a validation split, with its options."""
    options = ", ".join(f"{name}={value}" for name, value in source.options.items())
    return f"{source.kind} {source.split}" + (f" ({options})" if options else "")


def overlaid(results: list[RunResult]) -> Markup:
    """Curves of all runs in one figure each: accuracy, mean class accuracy, loss."""
    return side_by_side(*(_overlay(results, what) for what in _TITLES))


_LEGEND_CHARACTERS = 22  # of a name in a legend of two columns
_TITLES = {
    "accuracy": "validation accuracy, %",
    "mean_class_accuracy": "validation mean class accuracy, %",
    "loss": "training loss",
}


def _overlay(results: list[RunResult], what: str) -> Markup:
    with plot.style():
        columns = 1 if max(len(result.name) for result in results) > _LEGEND_CHARACTERS else 2
        drawn = plot.figure(4.0, 2.7 + 0.2 * -(-len(results) // columns))
        axes = drawn.subplots()
        for number, result in enumerate(results):
            history, line = result.history, plot.series(number)
            if what == "loss":
                axes.plot(history.position, smooth(history.loss["loss"]), label=result.name, **line)
            else:
                axes.plot(history.epochs, getattr(history, what), marker="o", markersize=3, label=result.name, **line)
        if what != "loss":
            plot.percent_axis(axes.yaxis)
        _finish(axes, _TITLES[what])
        drawn.legend(loc="outside lower left", ncols=columns)
    label = f"{_TITLES[what]} by epoch, of {len(results)} runs"
    return plot.svg(drawn, name=f"all-{what.replace('_', '-')}", label=label)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
