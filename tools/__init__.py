"""Scripts for maintainers: figures of the documentation, the table of models, and the fit of covered faces."""
