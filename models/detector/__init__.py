"""Face detector: its manifest."""
