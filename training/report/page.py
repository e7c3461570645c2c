"""HTML page of the report: summary, table, curves, and one part per run."""

import yaml
from markupsafe import Markup

from mien.data.contract import contract_id
from mien.training.faces import TEST, FaceSet
from mien.training.report import calibration, confusion, curves, looking, mistakes, overview, slices, tokens
from mien.training.report.render import Section, render
from mien.training.report.results import RunResult


def sections(result: RunResult, faces: FaceSet, *, key: str, show_faces: bool) -> list[Section]:
    """Sections about one run, in order."""
    made = [
        curves.section(result, key=key),
        confusion.recall(result, key=key),
        confusion.matrix(result),
        calibration.reliability(result, faces.labels, key=key),
        calibration.abstaining(result, faces.labels, key=key),
        mistakes.section(result, faces) if show_faces else None,
        looking.section(result, faces) if show_faces else None,
        tokens.section(result, faces, key=key),
        slices.section(result, faces, key=key),
    ]
    return [section for section in made if section is not None]


def page(results: list[RunResult], faces: FaceSet, *, show_faces: bool = True) -> str:
    """One self-contained HTML document.

    Args:
        results: runs evaluated on `faces`.
        faces: the split to show.
        show_faces: whether to include images of faces; the terms of a data set may prohibit sharing them.
    """
    runs = [
        {
            "key": f"run-{number}",
            "result": result,
            "sections": sections(result, faces, key=f"run-{number}", show_faces=show_faces),
            "recipe": yaml.safe_dump(result.recipe.model_dump(mode="json"), sort_keys=False),
            "facts": yaml.safe_dump(result.facts, sort_keys=False),
        }
        for number, result in enumerate(results, start=1)
    ]
    return render(
        "page.html",
        faces=faces,
        is_test=faces.split == TEST,
        show_faces=show_faces,
        contract=contract_id(),
        table=overview.as_html(results),
        validation_note=curves.validation_note(results, faces.title),
        overlaid=curves.overlaid(results) if len(results) > 1 else Markup(""),
        runs=runs,
    )
