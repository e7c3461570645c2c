"""The card that travels with a released face detector."""

from typing import Final

from models.detector.manifest import DetectorManifest
from training.detector.evaluate import Figure
from training.loop.metrics import Estimate

_USE: Final = (
    "Finding faces in photos and video and framing them by five landmarks, where YuNet's file is absent. It finds "
    "faces; it does not tell whose they are. Not for identification or surveillance, nor where a missed face harms."
)
_DATA: Final = (
    "Boxes and landmarks are YuNet's, means over eight looks at each picture (sizes, mirror images, shifts); there "
    "are no labels by people, so a face that YuNet does not see was never learned. A tenth of each folder, by the hash "
    "of the files, was held out and gives the figures below. Persons can occur in both parts."
)
_LIMITS: Final = (
    "It misses most faces below 24 px, and the face of an animal can pass for a person's. "
    "A higher threshold gives fewer false faces and misses more: see --threshold of training.detector.export."
)
_FIGURES: Final = (
    "Reference: YuNet's faces of 24 px and more and a score of 0.8 and more, at IoU 0.4. A detection is false where "
    "YuNet sees nothing in any of its looks, not even at a score of 0.3. Landmark errors are mean distances from the "
    "mean of eight looks, in distances of the eyes. The column YuNet is a single look of YuNet at the same image at a "
    "score of 0.6. Sizes and turns: these pictures scaled and turned, one look each, faces of 48 to 160 px where "
    "they are turned. 95 % bootstrap intervals over pictures."
)


def render(manifest: DetectorManifest, figures: dict[str, list[Figure]]) -> str:
    """Markdown text of the card."""
    summary = (
        f"A face detector of {manifest.parameters:,} parameters with YuNet's outputs: boxes, five landmarks and scores "
        f"at strides {', '.join(map(str, manifest.strides))}. Input: BGR, 0 to 255, sides multiples of 32."
    )
    command = (
        f"The score threshold, {manifest.score_threshold}, was chosen on these pictures. Command: "
        "`python -m training.detector.evaluate --artifact DIR`."
    )
    sections = [
        f"# Model card: {manifest.name}",
        summary,
        f"## Intended use\n\n{_USE}",
        f"## Learned from\n\n{_pictures(manifest)}\n\n{_DATA}",
        f"## Figures\n\n{_FIGURES} {command}",
        _table(figures),
        f"## Known limits\n\n{_LIMITS}",
        f"## Terms\n\n{manifest.license}",
    ]
    return "\n\n".join(sections) + "\n"


def _pictures(manifest: DetectorManifest) -> str:
    recipe: dict[str, dict[str, list[dict[str, object]]]] = manifest.recipe  # type: ignore[assignment]
    names = ", ".join(str(folder["name"]) for folder in recipe["data"]["folders"])
    return f"Folders of pictures (data/README.md): {names}. Teacher: {', '.join(manifest.teacher)}."


def _table(figures: dict[str, list[Figure]]) -> str:
    lines = [f"| on held-out pictures | faces | {' | '.join(figures)} |", "| --- " * (2 + len(figures)) + "|"]
    for rows in zip(*figures.values(), strict=True):
        cells = " | ".join(_cell(one.name, one.estimate) for one in rows)
        lines.append(f"| {rows[0].name} | {rows[0].faces} | {cells} |")
    return "\n".join(lines)


def _cell(name: str, one: Estimate) -> str:
    if name.startswith(("recall", "precision")):
        return f"{100 * one.value:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f})"
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"
