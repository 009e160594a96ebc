"""Rows for single claims: one method with other settings, run only under the noise of the claim."""

from dataclasses import replace
from typing import Any

from experiments.comparison.entries import ENTRIES, Entry, from_whitened
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.methods.classes import AdaptiveOptions, AnchorOptions, SmoothOptions
from robustdml.options import OptionSet

# Names of the rows of each group; the default setting has the name of its method.
TABLE_2 = {
    (threshold, beta): f"smooth-proxy-anchor-{threshold:g}-{beta:g}" if (threshold, beta) != (0.1, 100)
    else "smooth-proxy-anchor"
    for threshold in (0.075, 0.1, 0.125, 0.15)
    for beta in (50.0, 100.0, 150.0, 200.0)
}  # fmt: skip
MARGINS = {
    margin: f"proxy-anchor-margin-{margin:g}" if margin != 0.1 else "proxy-anchor"
    for margin in (0.0, 0.05, 0.1, 0.2, 0.4)
}
REGULARIZATIONS = {
    lam: f"adaptive-proxy-anchor-{lam:g}" if lam != 1 else "adaptive-proxy-anchor" for lam in (1.0, 10.0, 100.0, 1000.0)
}
PER_CLASS_MARGINS = "adaptive-proxy-anchor-per-class"


def _smooth(threshold: float, beta: float, name: str) -> Entry:
    settings = {"method": "smooth-proxy-anchor", "options": OptionSet(SmoothOptions(beta, threshold))}
    return Entry(name, f"Smooth Proxy-Anchor, λ = {threshold:g}, β = {beta:g}", settings)


def _with_margin(margin: float, name: str) -> Entry:
    settings = {"method": "proxy-anchor", "options": OptionSet(AnchorOptions(margin=margin))}
    return Entry(name, f"Proxy-Anchor, δ = {margin:g}", settings)


def _adaptive(name: str, title: str, **options: Any) -> Entry:
    settings = {"method": "adaptive-proxy-anchor", "options": OptionSet(AdaptiveOptions(**options))}
    return Entry(name, f"Adaptive Proxy-Anchor, {title}", settings)


def _part(name: str, title: str, method: str, **settings: Any) -> Entry:
    return Entry(name, title, {"method": method, **settings})


# What the start, the rate, the filter and the trials are worth: robust is the last of the line.
PARTS = [
    _part("contrastive-whitened-fast", "Contrastive, whitened start, twice the learning rate", "contrastive",
          start="whitened", learning_rate=6e-3),
    _part("robust-principal", "Robust, principal start", "robust", start="principal"),
    _part("robust-slow", "Robust, the learning rate not raised", "robust", learning_rate=3e-3),
    _part("contrastive-audit-whitened", "Contrastive, whitened start, the audit's filter", "contrastive",
          start="whitened", filter=FilterOptions("audit")),
    _part("robust-unfiltered", "Robust without a filter", "robust", filter=FilterOptions()),
    _part("robust-audit", "Robust, the audit alone", "robust", filter=FilterOptions("audit")),
    _part("robust-prism", "Robust, PRISM in place of the audit", "robust",
          filter=replace(METHODS["robust"].filter, on_trial=False)),
]  # fmt: skip

ABLATIONS = {
    entry.name: entry
    for entry in [
        *(_smooth(*pair, name) for pair, name in TABLE_2.items()),
        *(_with_margin(margin, name) for margin, name in MARGINS.items()),
        *(_adaptive(name, f"λ = {lam:g}", regularization=lam) for lam, name in REGULARIZATIONS.items()),
        _adaptive(PER_CLASS_MARGINS, "a margin per class", per_class=True),
    ]
    if entry.name not in ENTRIES
}
# Rivals of the suite, which run from their own start and from robust's.
RIVALS = (
    "contrastive",
    "superloss",
    "proxy-anchor",
    "proxy-nca",
    "contrastive-prism-vmf",
    "neighbour-filter",
    "procsim",
    "bspml",
    "sgps",
)
WHITENED_ENTRIES = [from_whitened(ENTRIES[name]) for name in RIVALS]
ALL_ENTRIES = ENTRIES | ABLATIONS | {entry.name: entry for entry in (*WHITENED_ENTRIES, *PARTS)}
