"""Face detector: network, decoding of its outputs, and manifest."""
