"""The one exception that the command line turns into one line of text."""


class UsageError(ValueError):
    """What the user asked for cannot be done as asked; the message says what to change."""
