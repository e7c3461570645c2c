"""Review of labels: local page, corrections file, and export as class folders."""
