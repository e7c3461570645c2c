"""A photo with one face, and a GPU that the CPU plays."""

from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import onnxruntime
import pytest

from mien.app.inference import classifier
from mien.app.inference.classifier import CPU, CUDA
from mien.data.contract import Array, decode
from tests.support import sample_photo


@pytest.fixture(scope="module")
def photo() -> Array:
    return decode(sample_photo().read_bytes())


class FakeGpu:
    """Runs sessions of CUDA on the CPU.

    Attributes:
        nodes: of a graph, by the providers that run its parts.
        max_inputs: of one inference, for which there is memory.
        is_free: what runs waits for this.
        providers: those of the last session, with their options.
        shapes: of the inputs of every run.
    """

    def __init__(self) -> None:
        self.nodes = [(CPU, 3), (CUDA, 2), (CUDA, 2)]
        self.max_inputs, self.is_free = 256, Event()
        self.is_free.set()
        self.providers, self.shapes = list[Any](), list[tuple[int, ...]]()
        self._open = onnxruntime.InferenceSession

    def open(self, graph: Path | bytes, options: Any, *, providers: list[Any]) -> Any:
        session = self._open(graph, options, providers=[CPU])
        if providers[0][0] == CPU:
            return session
        self.providers = providers

        def run(names: list[str], feed: dict[str, Array]) -> Any:
            shape = next(iter(feed.values())).shape
            self.shapes.append(shape)
            if shape[0] > self.max_inputs:
                raise MemoryError("out of memory")
            assert self.is_free.wait(60)
            return session.run(names, feed)

        parts = [Mock(ep_name=name, get_nodes=Mock(return_value=[None] * count)) for name, count in self.nodes]
        return Mock(wraps=session, run=run, get_provider_graph_assignment_info=Mock(return_value=parts))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(onnxruntime, "InferenceSession", fake.open)
    monkeypatch.setattr(classifier, "cuda_unavailable_reason", lambda: None)
    return fake
