"""Face detector: decoding of its outputs, and manifest."""
