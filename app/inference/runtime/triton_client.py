"""Inference on a Triton server over gRPC: crops there, logits back; everything else stays in this process.

The server has the model that `mien models triton` writes (triton.py). It must be there when the service starts. While
it is away later, requests get an error at once, and they succeed again when it is back.
"""

from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from mien.app.errors import BackendUnavailable, ProviderUnavailable, SettingsError
from mien.app.inference.tracing import passed_on
from mien.models.manifest import Manifest

TRITON: Final = "Triton"
_OPTIONS: Final = [
    # gRPC waits up to two minutes between attempts to connect
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
]


class TritonModel:
    """A model of a Triton server, with the `run` of an inference session; thread-safe."""

    def __init__(self, url: str, manifest: Manifest, *, timeout_s: float) -> None:
        """Connect, and compare the model with the manifest.

        Args:
            url: grpc://host:8001/model, or grpcs:// with TLS.
            manifest: of the local artifact, whose graph the server runs.
            timeout_s: for one inference.
        Raises: SettingsError; ProviderUnavailable, if the server is not there or has another model.
        """
        try:
            import tritonclient.grpc as triton
        except ImportError as error:
            raise ProviderUnavailable(
                f"MIEN_TRITON needs the extra `triton`: pip install 'mien[triton]' ({error})"
            ) from error
        parts = urlsplit(url)
        if parts.scheme not in ("grpc", "grpcs") or not parts.netloc or not parts.path.strip("/"):
            raise SettingsError(f"triton={url!r}: expected grpc://host:8001/model")
        self._triton, self._name, self._timeout_s = triton, parts.path.strip("/"), timeout_s
        self._client: Any = triton.InferenceServerClient(
            parts.netloc, ssl=parts.scheme == "grpcs", channel_args=_OPTIONS
        )
        try:
            parameters = self._client.get_model_config(self._name, client_timeout=timeout_s).config.parameters
        except triton.InferenceServerException as error:
            raise ProviderUnavailable(f"Triton at {url}: {error.message()}") from error
        for key, expected in (("artifact", manifest.name), ("contract_id", manifest.contract_id)):
            if (actual := parameters[key].string_value) != expected:
                raise ProviderUnavailable(f"Triton at {url}: {key} {actual or 'missing'}, expected {expected}")

    def run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        """Infer one batch. Raises: BackendUnavailable."""
        inputs = []
        for name, array in feed.items():
            inputs.append(self._triton.InferInput(name, list(array.shape), "UINT8"))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(array))
        wanted = [self._triton.InferRequestedOutput(name) for name in outputs]
        try:
            result = self._client.infer(
                self._name, inputs, outputs=wanted, client_timeout=self._timeout_s, headers=passed_on()
            )
        except self._triton.InferenceServerException as error:
            raise BackendUnavailable(f"Triton does not respond: {error.status() or error.message()}") from error
        return [result.as_numpy(name) for name in outputs]
