"""The rows of the comparison: methods with the settings they are compared in, and the columns."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A row.

    Attributes
    ----------
    name : str
        In file names and on the command line.
    title : str
        In tables and plots.
    settings : dict
        Fields of `TrainingConfig` that differ from its defaults.
    """

    name: str
    title: str
    settings: dict[str, Any] = field(compare=False)


def _entry(name: str, title: str, **settings: Any) -> Entry:
    return Entry(name, title, settings)


ENTRIES = {
    entry.name: entry
    for entry in [
        _entry("proxy-anchor", "Proxy-Anchor", method="proxy-anchor"),
        _entry("smooth-proxy-anchor", "Smooth Proxy-Anchor", method="smooth-proxy-anchor"),
        _entry("adaptive-proxy-anchor", "Adaptive Proxy-Anchor", method="adaptive-proxy-anchor"),
    ]
}

NOISES = (
    "none",
    "symmetric:0.2",
    "symmetric:0.5",
    "symmetric:0.7",
    "small-cluster:0.5",
    "semantic:0.2",
    "semantic:0.5",
)

QUICK_ENTRIES = ("proxy-anchor", "smooth-proxy-anchor")
QUICK_NOISES = ("none", "symmetric:0.5")
