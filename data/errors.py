"""The base class of every error that this project raises on purpose, in serving and training alike."""


class MienError(Exception):
    """An error whose message is written for the person who reads it; commands print it as one line."""
