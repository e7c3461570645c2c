"""Base class of all errors that this project raises, in serving and training."""


class MienError(Exception):
    """An error with a message for the user; commands print it as one line without a traceback."""
