"""Model repository for Triton Inference Server, written from a verified artifact.

Run `mien models triton out/triton`, then `tritonserver --model-repository out/triton`. Triton maps aligned crops to
logits; the client detects, aligns (`data.contract.align`) and calibrates (`data.contract.softmax`).
"""

import shutil
from pathlib import Path
from typing import Final, Literal

from mien.models.manifest import Manifest, load_artifact

NAME: Final = "mien_expressions"
MAX_BATCH: Final = 256
_QUEUE_US: Final = 2000


def write_repository(
    artifact: Path, out: Path, *, precision: Literal["fp32", "fp16"] = "fp32", device: Literal["cpu", "gpu"] = "cpu"
) -> Path:
    """Write `out/mien_expressions` with its graph, labels and configuration.

    Args:
        artifact: folder of the artifact; every file is verified first.
        out: the model repository; created if missing. Only this model is replaced.
        precision: the graph to serve; fp16 is meant for GPUs.
        device: where Triton runs the graph.
    Returns: the model's folder.
    Raises: ArtifactError, if the artifact is damaged or has no such graph; OSError.
    """
    manifest = load_artifact(artifact)
    graph = manifest.graph(precision)
    folder = out / NAME
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(artifact / graph.file, version / "model.onnx")
    (folder / "labels.txt").write_text("\n".join(manifest.labels) + "\n", encoding="utf-8")
    (folder / "config.pbtxt").write_text(_config(manifest, device), encoding="utf-8")
    return folder


def _config(manifest: Manifest, device: str) -> str:
    outputs = [_tensor(manifest.output.name, "TYPE_FP32", manifest.output.shape[1:], 'label_filename: "labels.txt"')]
    if manifest.explain is not None:
        outputs.append(_tensor(manifest.explain.name, "TYPE_FP32", manifest.explain.shape[1:]))
    parameters = {
        "artifact": manifest.name,
        "contract_id": manifest.contract_id,
        "temperature": f"{manifest.temperature:.6g}",
        "prior_correction": " ".join(f"{offset:.6g}" for offset in manifest.prior_correction),
        "abstain_threshold": f"{manifest.abstain_threshold:.6g}",
    }
    lines = [
        f'name: "{NAME}"',
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {MAX_BATCH}",
        f"input [\n{_tensor(manifest.input.name, 'TYPE_UINT8', manifest.input.shape[1:])}\n]",
        "output [\n" + ",\n".join(outputs) + "\n]",
        f"dynamic_batching {{ max_queue_delay_microseconds: {_QUEUE_US} }}",
        f"instance_group [ {{ count: 1 kind: KIND_{device.upper()} }} ]",
        *(f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in parameters.items()),
    ]
    return "\n".join(lines) + "\n"


def _tensor(name: str, kind: str, shape: tuple[int, ...], extra: str = "") -> str:
    dims = ", ".join(map(str, shape))
    return f'  {{ name: "{name}" data_type: {kind} dims: [ {dims} ] {extra}'.rstrip() + " }"
