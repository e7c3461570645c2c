"""Release of models: graphs, operating point, model card, and initialization from released weights."""
