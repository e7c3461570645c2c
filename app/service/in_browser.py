"""The facts that program and page share: labels, colors, reasons, thresholds, template, rules, and graphs.

The modules in `app/static/page/` implement detection, alignment, calibration and tracking in JavaScript, and get
all constants from here.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mien.app.inference import detector as search
from mien.app.inference.detector_files import score_threshold
from mien.app.inference.tracker import CUT_CHANGE, MEAN, NEW_TRACK_COST, TrackingRules
from mien.app.settings import InferenceSettings
from mien.data import quality
from mien.data.contract import CROP_PX, LANDMARKS, TEMPLATE_PX
from mien.data.contract.labels import COLORS, palette
from mien.data.contract.pixels import MIN_SPREAD_PX
from mien.models.detector.manifest import default_detector_dir, load_detector
from mien.models.manifest import Manifest, load_artifact, scores_of, sha256_of

# With WebAssembly, int8 is three times as fast as fp32 and a quarter of the download; WebGPU does not support it.
_PREFERRED: Final[dict[str, tuple[Literal["fp32", "int8"], ...]]] = {"wasm": ("int8", "fp32"), "webgpu": ("fp32",)}


@dataclass(frozen=True, slots=True)
class BrowserPipeline:
    """Verified artifacts for a browser; `graphs` maps the names under which files are served to their paths."""

    facts: dict[str, Any]
    graphs: dict[str, Path]


def browser_pipeline(model: Path, settings: InferenceSettings) -> BrowserPipeline:
    """The detector in the clone, followed by the model in the folder `model`. Raises: ArtifactError."""
    faces = default_detector_dir()
    detector, classifier = load_detector(faces), load_artifact(model)
    chosen = {where: next(name for name in order if name in classifier.graphs) for where, order in _PREFERRED.items()}
    graphs = {"detector.onnx": faces / detector.graph.file}
    graphs |= {f"classifier.{name}.onnx": model / classifier.graph(name).file for name in chosen.values()}
    constants = {name.lower(): value for name, value in vars(search).items() if name.isupper() and name[0] != "_"}
    facts = {
        "colors": COLORS | palette(classifier.labels),
        "tracking": asdict(TrackingRules())
        | {"new_track_cost": NEW_TRACK_COST, "mean_face": MEAN.ravel().tolist(), "cut_change": CUT_CHANGE},
        "limits": {name: getattr(settings, name) for name in ("min_face_px", "max_faces", "max_pixels")},
        "search": {
            **constants,
            "detect_rotated": settings.detect_rotated,
        },
        "detector": {
            "name": "builtin",
            "file": "detector.onnx",
            "input": detector.input.name,
            "strides": detector.strides,
            "grid_px": search.GRID_PX,
            "nms_iou": search.NMS_IOU,
            "top_k": search.TOP_K,
            "threshold": score_threshold(detector, settings),
        },
        "crop": {"px": CROP_PX, "template_px": TEMPLATE_PX, "min_spread_px": MIN_SPREAD_PX},
        "landmarks": LANDMARKS,
        "quality": quality.constants(),
        "classifier": _classifier(classifier, settings)
        | {
            "graphs": {where: {"file": f"classifier.{name}.onnx", "precision": name} for where, name in chosen.items()},
            "metrics": scores_of(model, chosen["wasm"]),
        },
        "bytes": {name: path.stat().st_size for name, path in graphs.items()},
        # a hash in the address lets a browser fetch a graph once
        "versions": {name: sha256_of(path)[:12] for name, path in graphs.items()},
    }
    return BrowserPipeline(facts, graphs)


def _classifier(manifest: Manifest, settings: InferenceSettings) -> dict[str, Any]:
    balanced = settings.prior == "balanced"
    return {
        "name": manifest.name,
        "input": manifest.input.name,
        "output": manifest.output.name,
        "labels": manifest.labels,
        "parameters": manifest.parameters,
        "temperature": manifest.temperature,
        "prior": settings.prior,
        "offsets": manifest.prior_correction if balanced else (0.0,) * len(manifest.labels),
        "confidence_threshold": manifest.confidence_threshold,
        "agreement": manifest.agreement and manifest.agreement.model_dump(),
    }
