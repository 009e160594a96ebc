"""What a planned step computes of the sums of pairs, and the first and the last launch of it on a GPU."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.triton_launch import Launch
from robustdml_ops.engine.rows.backends import rows_launch
from robustdml_ops.engine.validation import largest_weight
from robustdml_ops.ops.pairs.backends import ContrastOptions, PairOptions
from robustdml_ops.ops.pairs.sets import SetsKind, width_of


@dataclass(frozen=True)
class PairFormula:
    """A loss of the sums of pairs: L = 1/N Σ_i w_i (positive_i / divisors[0] + negative_i / divisors[1])."""

    options: PairOptions  # of the sums
    N: str = "present"  # all "samples", those "present", "terms" of each side, losses "above" 0, or positive "pairs"
    divisors: tuple[float, float] = (1.0, math.inf)
    scale: float = 0.0  # of a contrast's cosines; 0: a parameter
    candidate_weights: bool = False  # w are the weights of the candidates, too
    absent_zero_weights: bool = True  # a sample of weight 0 is in no set
    ignored: int | None = None  # a label of candidates that are in no set
    ids_keep_positives: bool = False  # ids take negatives out alone

    def sets(self, itself: bool, labels: Tensor | None, ids: Tensor | None) -> SetsKind:
        """What kernels know of the sets of such labels and ids."""
        each = [0 if one is None else width_of(one) for one in (labels, ids)]
        return SetsKind(itself, max(1, each[0]), each[1], self.ids_keep_positives)


def prepare_launch(
    formula: PairFormula, compute: torch.dtype, labels: int, weighted: bool, X: Tensor, candidates: bool
) -> Launch:
    """The first launch of the anchors or of the candidates X."""
    from robustdml_ops.ops.pairs.step_kernels import prepare_pairs as kernel

    (n, D), N, tile = X.shape, formula.N, rows_launch(X.shape[1], device.tile_of("rows", X))
    samples = n if N == "samples" or (N == "present" and not weighted) else 1  # as far as no value tells it
    fixed = {"n": n, "D": D, "row_stride": X.stride(0), "column_stride": X.stride(1), "scale": float(formula.scale)}
    divisors = formula.divisors
    if formula.options == ContrastOptions("both"):
        # Factors of both losses in L; anchors: of the loss and of its log-sum-exp, see sweep.both_ways().
        divisors = (2.0, 2.0) if candidates else (1.0, -2.0)
    fixed |= {"positive_divisor": samples * divisors[0], "negative_divisor": samples * divisors[1]}
    fixed |= {"IGNORES": candidates and formula.ignored is not None, "ignored": formula.ignored or 0}
    fixed |= {"ABSENT_ZERO": formula.absent_zero_weights, "PRESENT": weighted and N == "present", "LABELS": labels}
    # Weights are checked by the kernel's assertions; those of integer overflow stay out.
    fixed |= {"largest": largest_weight(compute), "debug": True, "sanitize_overflow": False}
    names = ("X", "U", "inverse_norm", "given_labels", "labels", "weights", "logit_scale", "logit_bias", "scales")
    blocks = {"BLOCK_W": device.block_of(n, 256), **tile}
    return Launch(kernel, device.grid_of(n, tile["BLOCK_R"]), (*names, "coefficients"), {**fixed, **blocks})


def finish_step_launch(N: str, n: int, parts: int) -> Launch:
    """The last launch, over ``parts`` of the sums of n anchors."""
    from robustdml_ops.ops.pairs.step_kernels import finish_pairs as kernel

    read = ("positive", "negative", "positive_counts", "negative_counts", "positives", "has_negatives", "scales")
    more = ("dcoefficients", "coefficients", "loss", "divisor", "dlogit_scale", "dlogit_bias")
    tile = device.launch(BLOCK=device.block_of(n, 1024), num_warps=4, num_stages=1)
    over = N if N in ("terms", "above", "pairs") else "nothing"
    return Launch(kernel, (1,), read + more, {"n": n, "parts": parts, "OVER": over, **tile})
