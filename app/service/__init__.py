"""The HTTP service: routes, uploads, limits, errors and metrics around the inference pipeline."""
