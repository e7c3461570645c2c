"""Parts of a release in addition to the graph: the model card and starting weights from released artifacts."""
