"""Prometheus metrics of the service, with a separate registry, one object per process.

With several worker processes (`mien serve --workers N`), each writes to the shared folder `PROMETHEUS_MULTIPROC_DIR`,
and any of them responds for all. `process_*` metrics are available with one process only.
"""

import os
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters, gauges and histograms; label values are from fixed sets and the settings, never from clients."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        self.requests = counter("mien_requests", "Requests by route, method and status", ("route", "method", "status"))
        self.key_requests = counter(
            "mien_key_requests", "Requests by name of the API key and status", ("key", "status")
        )
        self.request_seconds = histogram("mien_request_seconds", "Time to respond", ("route",), buckets=_BUCKETS_S)
        self.images = counter("mien_images", "Images by outcome", ("outcome",))
        self.faces = counter("mien_faces", "Labeled faces", ("label", "uncertain"))
        self.stage_seconds = histogram("mien_stage_seconds", "Time per image and stage", ("stage",), buckets=_BUCKETS_S)
        self.batch_faces = histogram("mien_batch_faces", "Faces per inference", buckets=_BATCH_BUCKETS)
        self.rejections = counter("mien_rejections", "Requests refused, by problem", ("problem",))
        self.queue = gauge("mien_queue_requests", "Requests in the queue")
        self.working = gauge("mien_working_requests", "Requests being processed")
        self.streams = gauge("mien_streams", "Open webcam streams")
        self.frames = counter("mien_stream_frames", "Frames by outcome", ("outcome",))
        facts = ("model", "provider", "precision", "detector", "fallback")
        self.running = gauge("mien_info", "1 for what this process runs", facts, multiprocess_mode="livemax")

    def render(self) -> bytes:
        """Render the text format for all worker processes."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        joined = CollectorRegistry()
        MultiProcessCollector(joined)  # type: ignore[no-untyped-call]
        return generate_latest(joined)
