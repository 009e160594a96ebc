"""What the papers claim, each claim a row: the paper's figures, ours, and whether it holds here."""

from dataclasses import dataclass

from robustdml_ops.recipes.comparison.results import Results
from robustdml_ops.recipes.comparison.summary import Estimate, compare

RECALL = "precision_at_1"
HALF, HALF_SEMANTIC = "symmetric:0.5", "semantic:0.5"


@dataclass(frozen=True)
class Claim:
    """One comparison that a paper reports.

    Attributes
    ----------
    paper : str
        Whose.
    text : str
        What is claimed.
    figures : str
        What the paper measured, on its own data.
    first, second : str
        Names of the entries: the first is to be above the second, or not below it.
    noise : str
        Column in which it is looked up.
    key : str
        What is compared, a key of a run's summary.
    allows_equal : bool
        Whether it holds as well if both are equal within the error.
    """

    paper: str
    text: str
    figures: str
    first: str
    second: str
    noise: str
    key: str = RECALL
    allows_equal: bool = False

    def estimates(self, results: Results) -> tuple[Estimate | None, Estimate | None]:
        """Look up both sides.

        Parameters
        ----------
        results : Results
            Of the runs.

        Returns
        -------
        tuple
            None where there was no run.
        """
        first, second = (results.estimate(name, self.noise, self.key) for name in (self.first, self.second))
        return first, second

    def verdict(self, results: Results) -> str:
        """Say whether it holds.

        Parameters
        ----------
        results : Results
            Of the runs.

        Returns
        -------
        str
            ``holds``, ``does not hold``, ``within the error`` or ``not run``.
        """
        first, second = self.estimates(results)
        if first is None or second is None:
            return "not run"
        relation = compare(first, second)
        if relation == "equal":
            return "holds" if self.allows_equal else "within the error"
        return "holds" if relation == "above" else "does not hold"


_SMOOTH, _ADAPTIVE, _PROCSIM = "Smooth Proxy-Anchor", "Adaptive Proxy-Anchor", "ProcSim"
_BSPML, _PRISM = "BSPML", "PRISM"
_UNIFORM = "CUB, 50 % uniform"

CLAIMS = [
    Claim(_SMOOTH, "above Proxy-Anchor", "71.24 : 67.95, web noise", "smooth-proxy-anchor", "proxy-anchor", HALF),
    Claim(_SMOOTH, "above multi-similarity", "71.24 : 68.61, web noise", "smooth-proxy-anchor", "multi-similarity",
          HALF),
    Claim(_SMOOTH, "above Proxy-NCA", "71.24 : 65.89, web noise", "smooth-proxy-anchor", "proxy-nca", HALF),
    Claim(_ADAPTIVE, "not below Proxy-Anchor at its best margin", "CUB 70.5 : 70.2", "adaptive-proxy-anchor",
          "proxy-anchor", "none", allows_equal=True),
    Claim(_PROCSIM, "above multi-similarity", f"{_UNIFORM} 60.8 : 49.5", "procsim", "multi-similarity", HALF),
    Claim(_PROCSIM, "above multi-similarity, semantic noise", "CUB, 50 % semantic 67.9 : 49.0", "procsim",
          "multi-similarity", HALF_SEMANTIC),
    Claim(_PROCSIM, "above Proxy-NCA", f"{_UNIFORM} 60.8 : 55.7", "procsim", "proxy-nca", HALF),
    Claim(_PROCSIM, "above SuperLoss", f"{_UNIFORM} 60.8 : 47.3", "procsim", "superloss", HALF),
    Claim(_PROCSIM, "threshold on Proxy-NCA above threshold on MS", f"{_UNIFORM} 60.8 : 54.1", "procsim",
          "procsim-detector-ms", HALF),
    Claim(_PROCSIM, "Otsu above the global mean", f"{_UNIFORM} 60.8 : 59.0", "procsim", "procsim-mean", HALF),
    Claim(_BSPML, "above multi-similarity", "CUB, 30 % 48.74 : 46.25", "bspml", "multi-similarity", "symmetric:0.2"),
    Claim(_BSPML, "above Proxy-Anchor", "CUB, 30 % 48.74 : 46.66", "bspml", "proxy-anchor", "symmetric:0.2"),
    Claim(_BSPML, "the balance term lowers SDAW", "Fig. 4", "bspml-unbalanced", "bspml", HALF, key="sdaw"),
    Claim(_PRISM, "MCL: AvgSim above no filter", "CARS, 50 % 75.4 : 45.7", "mcl-prism-average", "mcl", HALF),
    Claim(_PRISM, "MCL: vMF-Sim above AvgSim", "CARS, 50 % 77.9 : 75.4", "mcl-prism-vmf", "mcl-prism-average", HALF),
    Claim(_PRISM, "SoftTriple: AvgSim above no filter", "CARS, 50 % 75.5 : 67.1", "soft-triple-prism-average",
          "soft-triple", HALF),
    Claim(_PRISM, "SoftTriple: vMF-Sim above AvgSim", "CARS, 50 % 77.9 : 75.5", "soft-triple-prism-vmf",
          "soft-triple-prism-average", HALF),
]  # fmt: skip
