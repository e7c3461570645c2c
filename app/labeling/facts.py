"""Facts that the results of a run depend on, and its pipelines."""

import hashlib
import json
from pathlib import Path
from typing import Final

import cv2

from mien.app import VERSION
from mien.app.inference.labeler import Labeler
from mien.app.labeling.files import LabelingError
from mien.app.labeling.options import MAX_BYTES, MAX_PIXELS, LabelOptions
from mien.app.settings import Settings
from mien.data.contract import contract_id

_WORDS: Final = {
    "graphs": "model file",
    "detector_file": "detector file",
    "contract": "crop contract",
}


class OtherRun(LabelingError):
    """The output folder holds a run with other facts."""

    def __init__(self, out: Path, earlier: dict[str, str], facts: dict[str, str]) -> None:
        changed = ", ".join(
            f"{_WORDS.get(name, name.replace('_', ' '))} {earlier.get(name) or 'unset'} -> {facts[name] or 'unset'}"
            for name in facts
            if facts[name] != earlier.get(name)
        )
        super().__init__(
            f"{out} holds a run with other settings: {changed}. Restore these, or choose another --out "
            "to label everything again."
        )


def with_limits(settings: Settings) -> Settings:
    """Settings with raised limits: the default ones are for untrusted uploads. Limits that are set are kept."""
    raised = {"max_bytes": MAX_BYTES, "max_pixels": MAX_PIXELS, "detection_tiles": "wide"}
    limits = {name: value for name, value in raised.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=limits)


def open_pipeline(settings: Settings) -> Labeler:
    """The pipeline that all threads of a process share, with one thread per inference."""
    cv2.setNumThreads(1)  # workers use all cores; OpenCV's own threads would compete with them
    return Labeler.open(with_limits(settings).model_copy(update={"threads": 1}))


def facts_of(pipeline: Labeler, options: LabelOptions) -> dict[str, str]:
    """Everything except the image that results and copies depend on; if one changes, a run cannot be resumed."""
    settings, manifest = pipeline.settings, pipeline.classifier.manifest
    agreement = manifest.agreement
    return {
        "version": VERSION,
        "model": manifest.name,
        "graphs": hashlib.sha256(
            json.dumps({name: graph.sha256 for name, graph in sorted(manifest.graphs.items())}).encode()
        ).hexdigest()[:16],
        "temperature": f"{manifest.temperature:.6g}",
        "prior": pipeline.classifier.prior,
        "prior_correction": " ".join(f"{offset:.6g}" for offset in manifest.prior_correction),
        "confidence_threshold": f"{manifest.confidence_threshold:.6g}",
        "agreement": " ".join(f"{value:.6g}" for value in (agreement.temperature, *agreement.offsets))
        if agreement
        else "",
        "labels": " ".join(manifest.labels),
        "precision": pipeline.classifier.precision,
        "provider": pipeline.classifier.provider,
        "contract": contract_id(),
        "detector": "none" if options.whole else pipeline.detector.name,
        "sampling": options.sampling,
        "annotated_px": str(options.annotated_px),
        "detector_file": getattr(pipeline.detector, "sha256", "")[:16],
        "detection": f"{settings.detection_threshold:g} {settings.detection_px} {settings.detection_max_px} "
        f"{settings.detect_rotated} {settings.min_face_px:g} {settings.max_faces} {settings.reduced_decode} "
        f"{settings.detection_tiles}",
    }
