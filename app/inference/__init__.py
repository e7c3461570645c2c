"""Inference, from encoded photos to labeled faces; independent of HTTP and folders."""
