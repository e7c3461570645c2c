"""The released face detector: its network, the decoding of its outputs, and its manifest."""
