"""Serving: the command line, the HTTP service and the labelling of folders. Never imports torch."""
