"""Groups of settings: frozen dataclasses whose fields carry the text that the command line shows for them."""

from dataclasses import field
from typing import Any


def option(default: Any, text: str, *, choices: tuple[str, ...] | None = None, kind: type | None = None) -> Any:
    """Declare a field of a group of settings.

    Parameters
    ----------
    default : object
        Its value where none is given.
    text : str
        What it does, for ``--help``.
    choices : tuple of str, optional
        The values that it may have.
    kind : type, optional
        Of what the command line reads; by default the type of `default`. Needed where that is None.

    Returns
    -------
    object
        What `dataclasses.field` makes.
    """
    metadata = {"text": text, "choices": choices, "kind": kind or type(default)}
    return field(default=default, metadata=metadata)
