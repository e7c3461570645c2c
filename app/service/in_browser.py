"""What the page gets from the program: labels, colors, thresholds and rules, and the photo graph for local mode.

The modules in `app/static/page/` track people and tell scenes apart in JavaScript, with these constants.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mien.app.inference.tracker import CUT_CHANGE, MEAN, NEW_TRACK_COST, TrackingRules
from mien.app.settings import InferenceSettings
from mien.data.contract import CROP_PX, LANDMARKS, TEMPLATE_PX
from mien.data.contract.labels import COLORS, palette
from mien.data.quality import AMBIGUOUS_BELOW, REASONS
from mien.models.manifest import Precision, load_artifact, scores_of

_PREFERRED: Final[tuple[Precision, ...]] = ("int8", "fp32")  # on WebAssembly, int8 is smaller and faster


@dataclass(frozen=True, slots=True)
class BrowserPipeline:
    """What a browser gets: `facts`, and the verified photo graph, if the artifact has one."""

    facts: dict[str, Any]
    graph: Path | None


def browser_pipeline(model: Path, settings: InferenceSettings) -> BrowserPipeline:
    """Facts of the model in the folder `model`, with the settings of the service. Raises: ArtifactError."""
    manifest = load_artifact(model)
    defaults: dict[str, Sequence[float]] = {"max_faces": (settings.max_faces,)}  # of inputs of the graph
    if "detection_threshold" in settings.model_fields_set:
        defaults["score_threshold"] = (settings.detection_threshold,)
    if settings.prior == "natural":
        defaults["prior_correction"] = (0.0,) * len(manifest.labels)
    precision: Precision = next((name for name in _PREFERRED if name in manifest.photo_graphs), "fp32")
    file = manifest.photo_graphs.get(precision)
    graph = None
    if file is not None:
        graph = {
            "file": file.file,
            "version": file.sha256[:12],  # in the address, which lets a browser fetch it once
            "bytes": (model / file.file).stat().st_size,
            "precision": precision,
            "defaults": defaults,
        }
    facts = {
        "colors": COLORS | palette(manifest.labels),
        "tracking": asdict(TrackingRules())
        | {"new_track_cost": NEW_TRACK_COST, "mean_face": MEAN.ravel().tolist(), "cut_change": CUT_CHANGE},
        "limits": {name: getattr(settings, name) for name in ("min_face_px", "max_pixels")},
        "crop": {"px": CROP_PX, "template_px": TEMPLATE_PX},
        "landmarks": LANDMARKS,
        "reasons": REASONS,
        "quality": {"ambiguous_below": AMBIGUOUS_BELOW},
        "classifier": {
            "name": manifest.name,
            "labels": manifest.labels,
            "parameters": manifest.parameters,
            "prior": settings.prior,
            "confidence_threshold": manifest.confidence_threshold,
            "metrics": scores_of(model, precision),
        },
        "graph": graph,
    }
    return BrowserPipeline(facts, None if file is None else model / file.file)
