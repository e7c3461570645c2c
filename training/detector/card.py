"""Model card of a face detector."""

from typing import Final

from mien.models.detector.manifest import DetectorManifest, DetectorMetric
from mien.models.manifest import Interval
from mien.training.detector.config import DetectorRecipe
from mien.training.wording import markdown_table, percent

_USE: Final = (
    "Finding faces and their five landmarks in photos and video if YuNet's file is missing. Not for identification or "
    "surveillance, and not where a missed face causes harm."
)
_DATA: Final = (
    "Boxes and landmarks are means of YuNet's detections in up to eleven views of each image (scaled, mirrored, "
    "shifted). What only a part of these or views rotated by 90 degrees show is neither a face nor background. There "
    "are no human annotations, so faces that YuNet misses were not learned. Selected by file hash, a twentieth of each "
    "folder was held out for the score threshold and the metrics below, and another one for the test by `mien detector "
    "evaluate`. The same person can appear in all parts."
)
_LIMITS: Final = (
    "It misses most faces below 24 px and sometimes detects faces of animals. A higher threshold gives fewer false "
    "positives and lower recall (`mien detector export --threshold`)."
)
_METRICS: Final = (
    "The reference is YuNet's labels with at least 24 px and a score of 0.8, matched at an IoU of 0.4. A false "
    "positive overlaps no YuNet detection in any view, even at a score of 0.3. Landmark errors are mean distances "
    "from the labels, divided by the distance between the eyes. The column YuNet is YuNet on a single view with a "
    "score threshold of 0.6. Recall by size and rotation uses scaled and rotated copies of these images; rotated faces "
    "have 48 to 160 px. Intervals are 95 % bootstrap intervals over images."
)


def render(manifest: DetectorManifest, metrics: dict[str, list[DetectorMetric]]) -> str:
    """Markdown text of the card."""
    summary = (
        f"A face detector with {manifest.parameters:,} parameters and YuNet's outputs: boxes, five landmarks and "
        f"scores at strides {', '.join(map(str, manifest.strides))}. Input: BGR, 0 to 255, sides multiples of 32."
    )
    command = (
        f"The score threshold, {manifest.score_threshold}, was selected on the same images. Test: "
        "`mien detector evaluate --artifact DIR`."
    )
    rows = [
        (same[0].name, str(same[0].faces), *(_cell(metric.name, metric.estimate) for metric in same))
        for same in zip(*metrics.values(), strict=True)
    ]
    sections = [
        f"# Model card: {manifest.name}",
        summary,
        f"## Intended use\n\n{_USE}",
        f"## Training data\n\n{_sources(manifest)}\n\n{_DATA}",
        f"## Metrics\n\n{_METRICS} {command}",
        markdown_table(("on held-out images", "faces", *metrics), rows),
        f"## Limitations\n\n{_LIMITS}",
        f"## Terms\n\n{manifest.license}",
    ]
    return "\n\n".join(sections) + "\n"


def _sources(manifest: DetectorManifest) -> str:
    recipe = DetectorRecipe.model_validate(manifest.recipe)
    names = ", ".join(folder.name for folder in recipe.data.folders)
    sources = f"Image folders (data/README.md): {names}. Teacher: {', '.join(manifest.teacher)}."
    if recipe.loss.cells:
        sources += " Its outputs in each cell of the samples were learned, too."
    if (start := recipe.model.init_from) is None:
        return sources
    share = f"{100 * recipe.scenes.hard_share:.0f} %"
    return (
        f"{sources} Training started with {start}, and {share} of the parts of its samples show false positives of it."
    )


def _cell(name: str, estimate: Interval) -> str:
    if name.startswith(("recall", "precision")):
        value, low, high = (percent(share, 1) for share in (estimate.value, estimate.low, estimate.high))
        return f"{value} % ({low} to {high})"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
