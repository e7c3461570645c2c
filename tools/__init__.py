"""Scripts for maintainers: figures of the documentation, and the measurement of the alignment template."""
