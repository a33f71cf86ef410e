"""What readers of descriptions share."""


class DescriptionError(Exception):
    """A description that says what cannot be; the text names the place."""
