"""The papers' claims, a row each."""

from collections.abc import Iterable

from experiments.comparison.ablations import ALL_ENTRIES, MARGINS, PER_CLASS_MARGINS, REGULARIZATIONS, TABLE_2
from experiments.comparison.cells import Cell
from experiments.comparison.claim import Claim, Operand
from robustdml.config import TrainingConfig

# The noise rates of the papers, where they give them.
CLEAN, FIFTH, THIRTY, HALF, HALF_SEMANTIC = "none", "symmetric:0.2", "symmetric:0.3", "symmetric:0.5", "semantic:0.5"


def _claim(
    paper: str,
    text: str,
    figures: str,
    first: str | Operand,
    second: str | Operand,
    noise: str,
    allows_equal: bool = False,
) -> Claim:
    one, other = (Operand((side,)) if isinstance(side, str) else side for side in (first, second))
    return Claim(paper, text, figures, one, other, noise, allows_equal)


def _lowest(names: Iterable[str]) -> Operand:
    return Operand(tuple(names), pick=min)


def _highest(names: Iterable[str]) -> Operand:
    return Operand(tuple(names), pick=max)


def _both(key: str, first: str, second: str) -> tuple[Operand, Operand]:
    return Operand((first,), key), Operand((second,), key)


_SMOOTH, _ADAPTIVE, _PROCSIM = "Smooth Proxy-Anchor", "Adaptive Proxy-Anchor", "ProcSim"
_BSPML, _PRISM = "BSPML", "PRISM"
_UNIFORM = "CUB, 50 % uniform"

CLAIMS = [
    _claim(_SMOOTH, "above Proxy-Anchor", "71.24 : 67.95, web noise", "smooth-proxy-anchor", "proxy-anchor", HALF),
    _claim(_SMOOTH, "above multi-similarity", "71.24 : 68.61, web noise", "smooth-proxy-anchor", "multi-similarity",
           HALF),
    _claim(_SMOOTH, "above Proxy-NCA", "71.24 : 65.89, web noise", "smooth-proxy-anchor", "proxy-nca", HALF),
    _claim(_SMOOTH, "the worst (λ, β) of its Table 2 above Proxy-Anchor", "69.79 : 67.95, web noise",
           _lowest(TABLE_2.values()), "proxy-anchor", HALF),
    _claim(_SMOOTH, "the worst (λ, β) of its Table 2 above multi-similarity", "69.79 : 68.61, web noise",
           _lowest(TABLE_2.values()), "multi-similarity", HALF),
    _claim(_ADAPTIVE, "not below Proxy-Anchor at its best margin", "CUB 70.5 : 70.2", "adaptive-proxy-anchor",
           _highest(MARGINS.values()), CLEAN, allows_equal=True),
    _claim(_ADAPTIVE, "one margin not below a margin per class", "CUB 70.5 : 70.1", "adaptive-proxy-anchor",
           PER_CLASS_MARGINS, CLEAN, allows_equal=True),
    _claim(_ADAPTIVE, "flat in λ: the worst of 1, 10, 100, 1000 not below the best", "Fig. 5",
           _lowest(REGULARIZATIONS.values()), _highest(REGULARIZATIONS.values()), CLEAN, allows_equal=True),
    _claim(_PROCSIM, "above multi-similarity", f"{_UNIFORM} 60.8 : 49.5", "procsim", "multi-similarity", HALF),
    _claim(_PROCSIM, "above multi-similarity, semantic noise", "CUB, 50 % semantic 67.9 : 49.0", "procsim",
           "multi-similarity", HALF_SEMANTIC),
    _claim(_PROCSIM, "above Proxy-NCA", f"{_UNIFORM} 60.8 : 55.7", "procsim", "proxy-nca", HALF),
    _claim(_PROCSIM, "above SuperLoss", f"{_UNIFORM} 60.8 : 47.3", "procsim", "superloss", HALF),
    _claim(_PROCSIM, "threshold on Proxy-NCA above threshold on MS", f"{_UNIFORM} 60.8 : 54.1", "procsim",
           "procsim-detector-ms", HALF),
    _claim(_PROCSIM, "Otsu on Proxy-NCA finds more of the wrong labels than on MS", "90 % : 50 %",
           *_both("above_threshold_wrong", "procsim", "procsim-detector-ms"), HALF),
    _claim(_PROCSIM, "Otsu above the global mean", f"{_UNIFORM} 60.8 : 59.0", "procsim", "procsim-mean", HALF),
    _claim(_BSPML, "above multi-similarity", "CUB, 30 % 48.74 : 46.25", "bspml", "multi-similarity", THIRTY),
    _claim(_BSPML, "above Proxy-Anchor", "CUB, 30 % 48.74 : 46.66", "bspml", "proxy-anchor", THIRTY),
    _claim(_BSPML, "the balance term lowers SDAW", "20 %, Fig. 4", *_both("sdaw", "bspml-unbalanced", "bspml"), FIFTH),
    _claim(_BSPML, "weights of right labels stay, of wrong ones go to 0", "section 3",
           Operand(("bspml",), "weight_right"), Operand(("bspml",), "weight_wrong"), HALF),
    _claim(_PRISM, "MCL: AvgSim above no filter", "CARS, 50 % 75.4 : 45.7", "mcl-prism-average", "mcl", HALF),
    _claim(_PRISM, "MCL: vMF-Sim above AvgSim", "CARS, 50 % 77.9 : 75.4", "mcl-prism-vmf", "mcl-prism-average", HALF),
    _claim(_PRISM, "SoftTriple: AvgSim above no filter", "CARS, 50 % 75.5 : 67.1", "soft-triple-prism-average",
           "soft-triple", HALF),
    _claim(_PRISM, "SoftTriple: vMF-Sim above AvgSim", "CARS, 50 % 77.9 : 75.5", "soft-triple-prism-vmf",
           "soft-triple-prism-average", HALF),
    _claim(_PRISM, "SoftTriple: vMF-Sim trains longer than AvgSim", "+39 % : +5.8 %",
           *_both("training_seconds", "soft-triple-prism-vmf", "soft-triple-prism-average"), HALF),
]  # fmt: skip


def claim_cells(
    data: str, noises: Iterable[str] | None, seeds: int, common: TrainingConfig, done: Iterable[Cell]
) -> list[Cell]:
    """The runs that the claims need and the table lacks."""
    wanted = {
        Cell(data, ALL_ENTRIES[name], claim.noise, seed, common, in_table=False): None
        for seed in range(seeds)
        for claim in CLAIMS
        if noises is None or claim.noise in noises
        for name in sorted(claim.names)
    }
    present = set(done)
    return [cell for cell in wanted if cell not in present]
