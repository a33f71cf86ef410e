"""The error that all readers of descriptions raise."""


class DescriptionError(Exception):
    """An invalid description. The text names the place."""
