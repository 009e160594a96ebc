"""Default rows, columns and seeds of a comparison: on one data set, and over the suite."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.comparison.ablations import ALL_ENTRIES, RIVALS
from experiments.comparison.entries import ENTRIES, NOISES, QUICK_ENTRIES, QUICK_NOISES, Entry
from robustdml.errors import UsageError

# `--data suite`: all data sets of the suite. `--data suite-validation`: their validation sets.
SUITE, SUITE_VALIDATION = "suite", "suite-validation"

SUITE_DATA = (
    "digits",
    "libras",
    "appliances",
    "pig-pressure",
    "vowel",
    "texture",
    "sounds",
    "code",
    "mixture-few",
    "mixture-offset",
    "mixture-tail",
    "mixture-long-tail",
    "mixture-twos",
)
# Robust, and each rival from its own start and from robust's.
SUITE_ENTRIES = ("robust", *(f"{name}{start}" for name in RIVALS for start in ("", "-whitened")))
SUITE_NOISES = ("none", "symmetric:0.2", "symmetric:0.5", "class-conditional:0.3")
SEEDS, QUICK_SEEDS = 3, 2

# One of each kind, and of the mixtures one with few classes and one with many.
QUICK_SUITE_DATA = ("digits", "libras", "pig-pressure", "sounds", "mixture-few", "mixture-twos")
QUICK_SUITE_ENTRIES = ("robust", "proxy-anchor", "contrastive", "contrastive-whitened", "superloss", "bspml")
QUICK_SUITE_NOISES = ("none", "symmetric:0.5")


@dataclass(frozen=True)
class Plan:
    """Rows, columns and seeds."""

    entries: tuple[Entry, ...]  # Rows
    noises: tuple[str, ...]  # Columns; a data set may lack some
    seeds: int  # Runs of each cell
    with_claims: bool  # Whether the runs that only claims need are added


def make_plan(
    several: bool, quick: bool, methods: Sequence[str] | None, noises: Sequence[str] | None, seeds: int | None
) -> Plan:
    """Take the given rows, columns and seeds; the lists above for the others."""
    defaults = {
        (False, False): (ENTRIES, NOISES),
        (False, True): (QUICK_ENTRIES, QUICK_NOISES),
        (True, False): (SUITE_ENTRIES, SUITE_NOISES),
        (True, True): (QUICK_SUITE_ENTRIES, QUICK_SUITE_NOISES),
    }
    default_rows, default_noises = defaults[several, quick]
    suite = QUICK_SUITE_ENTRIES if quick else SUITE_ENTRIES
    names = [name for row in methods or default_rows for name in (suite if row == SUITE else (row,))]
    return Plan(
        tuple(ALL_ENTRIES[name] for name in dict.fromkeys(names)),
        tuple(dict.fromkeys(noises or default_noises)),
        (QUICK_SEEDS if quick else SEEDS) if seeds is None else seeds,
        with_claims=not several and not methods and not quick,
    )


def expand_names(given: Iterable[str], quick: bool) -> list[str]:
    """Replace the name of a suite by its data sets.

    Examples
    --------
    >>> expand_names(["suite-validation"], quick=True)[:2]
    ['digits-validation', 'libras-validation']
    """
    suite = QUICK_SUITE_DATA if quick else SUITE_DATA
    presets = {SUITE: suite, SUITE_VALIDATION: tuple(f"{name}-validation" for name in suite)}
    names = [name for source in given for name in presets.get(source, (source,))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"data {', '.join(twice)}: given twice")
    return names
