"""Sums over pairs of samples: per anchor, over the candidates of its class and over those of the others."""

from robustdml_ops.ops.pairs.hinge import DISTANCES, PairHinge, pair_hinge, pair_hinge_sum
from robustdml_ops.ops.pairs.lse import PairLSE, pair_lse, pair_lse_sum

__all__ = ["DISTANCES", "PairHinge", "PairLSE", "pair_hinge", "pair_hinge_sum", "pair_lse", "pair_lse_sum"]
