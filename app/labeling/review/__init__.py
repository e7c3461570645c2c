"""Review of labels by people: the local page, the corrections file and the export as class folders."""
