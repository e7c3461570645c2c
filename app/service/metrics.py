"""Prometheus metrics of the service, with a separate registry, one object per process.

With several worker processes (`mien serve --workers N`), each writes to the shared folder `PROMETHEUS_MULTIPROC_DIR`,
and any of them responds for all. `process_*` metrics are available with one process only.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_STAGE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters, gauges and histograms; label values are from fixed sets and the settings, never from clients."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "mien_requests", "Requests by route, method and status", ("route", "method", "status"), registry=registry
        )
        self.key_requests = Counter(
            "mien_key_requests", "Requests by name of the API key and status", ("key", "status"), registry=registry
        )
        self.key_megapixels = Counter(
            "mien_key_megapixels", "Megapixels by name of the API key", ("key",), registry=registry
        )
        self.request_seconds = Histogram(
            "mien_request_seconds", "Time to respond", ("route",), buckets=_STAGE_BUCKETS_S, registry=registry
        )
        self.images = Counter("mien_images", "Images by outcome", ("outcome",), registry=registry)
        self.faces = Counter("mien_faces", "Labeled faces", ("label", "uncertain"), registry=registry)
        self.stage_seconds = Histogram(
            "mien_stage_seconds", "Time per image and stage", ("stage",), buckets=_STAGE_BUCKETS_S, registry=registry
        )
        self.batch_faces = Histogram(
            "mien_batch_faces", "Faces per inference", buckets=_BATCH_BUCKETS, registry=registry
        )
        self.rejections = Counter("mien_rejections", "Requests refused, by problem", ("problem",), registry=registry)
        self.queue = Gauge(
            "mien_queue_requests", "Requests in the queue", registry=registry, multiprocess_mode="livesum"
        )
        self.working = Gauge(
            "mien_working_requests", "Requests being processed", registry=registry, multiprocess_mode="livesum"
        )
        self.streams = Gauge("mien_streams", "Open webcam streams", registry=registry, multiprocess_mode="livesum")
        self.frames = Counter("mien_stream_frames", "Frames by outcome", ("outcome",), registry=registry)
        self.running = Gauge(
            "mien_info",
            "1 for what this process runs",
            ("model", "provider", "precision", "detector", "fallback"),
            registry=registry,
            multiprocess_mode="livemax",
        )

    def render(self) -> bytes:
        """Render the text format for all worker processes."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        joined = CollectorRegistry()
        MultiProcessCollector(joined)  # type: ignore[no-untyped-call]
        return generate_latest(joined)
