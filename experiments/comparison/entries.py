"""Rows and columns of the comparison: methods with their settings, and noises."""

from dataclasses import dataclass, field, replace
from typing import Any

from experiments.comparison import neighbour_filter, subgroup_pairs  # noqa: F401  each adds a method
from robustdml.config import WHITENED, TrainingConfig
from robustdml.filters.options import NO_FILTER, FilterOptions
from robustdml.methods.pairs import ProcSimOptions, SelfPacedOptions
from robustdml.options import Options, OptionSet


@dataclass(frozen=True)
class Entry:
    """A row."""

    name: str  # In file names and on the command line
    title: str  # In tables and plots
    settings: dict[str, Any] = field(compare=False)  # Fields of `TrainingConfig` that differ from its defaults
    # Robust's base loss: the entry of that loss alone. None for all other entries.
    base: str | None = field(default=None, compare=False)

    @property
    def unfiltered(self) -> bool:
        """Whether it trains on all samples: neither a filter nor built on another entry."""
        return self.base is None and TrainingConfig(**self.settings).filter_options.kind == NO_FILTER


def _entry(name: str, title: str, method: str, *groups: Options, base: str | None = None) -> Entry:
    return Entry(name, title, {"method": method, "options": OptionSet(*groups)}, base)


def _filtered(method: str, title: str, similarity: str, suffix: str = "", note: str = "", **options: Any) -> Entry:
    return Entry(
        f"{method}-prism-{similarity}{suffix}",
        f"{title} + PRISM {_SIMILARITIES[similarity]}{note}",
        {"method": method, "filter": FilterOptions(kind=f"prism-{similarity}", **options)},
    )


_SIMILARITIES = {"average": "AvgSim", "proxy": "ProxySim", "vmf": "vMF-Sim"}
_PAPER = {"preset": "paper"}
_OURS = {"threshold": "per-class", "without_copies": True}

ENTRIES = {
    entry.name: entry
    for entry in [
        _entry("robust", "Robust", "robust", base="contrastive"),
        _entry("proxy-nca", "Proxy-NCA", "proxy-nca"),
        _entry("proxy-anchor", "Proxy-Anchor", "proxy-anchor"),
        _entry("soft-triple", "SoftTriple", "soft-triple"),
        _entry("cosface", "CosFace", "cosface"),
        _entry("arcface", "ArcFace", "arcface"),
        _entry("subcenter-arcface", "Sub-center ArcFace", "subcenter-arcface"),
        _entry("contrastive", "Contrastive", "contrastive"),
        _entry("mcl", "MCL", "mcl"),
        _entry("multi-similarity", "Multi-similarity", "multi-similarity"),
        _entry("superloss", "SuperLoss", "superloss"),
        _entry("smooth-proxy-anchor", "Smooth Proxy-Anchor", "smooth-proxy-anchor"),
        _entry("adaptive-proxy-anchor", "Adaptive Proxy-Anchor", "adaptive-proxy-anchor"),
        _entry("procsim", "ProcSim", "procsim"),
        _entry("procsim-detector-ms", "ProcSim, cut on MS", "procsim",
               ProcSimOptions(detector="multi-similarity")),
        _entry("procsim-mean", "ProcSim, cut at the mean", "procsim", ProcSimOptions(threshold="mean")),
        _entry("procsim-drop-above", "ProcSim, what is above left out", "procsim",
               ProcSimOptions(drop_above=True)),
        _entry("bspml", "BSPML", "bspml"),
        _entry("neighbour-filter", "kNN filter", "neighbour-filter"),
        Entry("sgps", "SGPS", {"method": "sgps", "filter": FilterOptions(kind="prism-average", preset="paper")}),
        _entry("bspml-unbalanced", "BSPML, μ = 0", "bspml", SelfPacedOptions(mu=0.0)),
        _filtered("contrastive", "Contrastive", "vmf", **_PAPER),
        _filtered("mcl", "MCL", "average", **_PAPER),
        _filtered("mcl", "MCL", "vmf", **_PAPER),
        _filtered("soft-triple", "SoftTriple", "average", **_PAPER),
        _filtered("soft-triple", "SoftTriple", "proxy", **_PAPER),
        _filtered("soft-triple", "SoftTriple", "vmf", **_PAPER),
        _filtered("proxy-anchor", "Proxy-Anchor", "average", **_PAPER),
        _filtered("proxy-anchor", "Proxy-Anchor", "proxy", **_PAPER),
        _filtered("proxy-anchor", "Proxy-Anchor", "vmf", **_PAPER),
        _filtered("proxy-anchor", "Proxy-Anchor", "vmf", "-corrected", ", κ corrected"),
        _filtered("proxy-anchor", "Proxy-Anchor", "average", "-per-class", ", per class", **_OURS),
        _filtered("proxy-anchor", "Proxy-Anchor", "vmf", "-per-class", ", per class", **_OURS),
        _filtered("mcl", "MCL", "vmf", "-per-class", ", per class", **_OURS),
        _filtered("soft-triple", "SoftTriple", "vmf", "-per-class", ", per class", **_OURS),
        _filtered("contrastive", "Contrastive", "vmf", "-per-class", ", per class", **_OURS),
    ]
}  # fmt: skip


def from_whitened(entry: Entry) -> Entry:
    """The same from robust's start: the features whitened within classes."""
    title = f"{entry.title}, whitened start"
    return replace(entry, name=f"{entry.name}-whitened", title=title, settings={**entry.settings, "start": WHITENED})


NOISES = (
    "none",
    "symmetric:0.2",
    "symmetric:0.5",
    "symmetric:0.7",
    "small-cluster:0.5",
    "semantic:0.2",
    "semantic:0.5",
)

QUICK_ENTRIES = (
    "robust",
    "proxy-anchor",
    "soft-triple",
    "mcl",
    "multi-similarity",
    "superloss",
    "smooth-proxy-anchor",
    "procsim",
    "bspml",
    "mcl-prism-vmf",
    "soft-triple-prism-vmf",
    "proxy-anchor-prism-vmf-per-class",
    "mcl-prism-vmf-per-class",
)
QUICK_NOISES = ("none", "symmetric:0.5")
