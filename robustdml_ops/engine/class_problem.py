"""What the sweeps of the class log-sum-exp compute: logits, and the sums over classes that a batch takes of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.engine.problem import LabelSets


@dataclass(frozen=True)
class ClassProblem:
    """The logits scale_k·s'_xk + bias_k, where s' pools the similarities with the H sub-centres of a class."""

    labels: LabelSets
    scale: Tensor  # () or (C,) compute dtype, contiguous
    bias: Tensor | None  # (C,) compute dtype, contiguous; −inf: the class is masked
    target_bias: float  # added to the logit of the label
    exclude_target: bool  # whether the sum leaves the label out
    centers: int  # H
    pooling: str  # "none" (H = 1), "max" or "softmax"
    gamma: float  # temperature of "softmax"
    normalize: bool  # whether proxies are scaled to length 1


@dataclass
class ClassChunk:
    """One chunk of a sweep, as an epilogue sees it. Chunks hold whole classes."""

    S: Tensor  # (c·H, B) in: V·x; out: dL/dS in the backward sweep, else undefined
    first: int  # class of the first row
    V: Tensor  # (c·H, D) in: what stood for the proxies in the product that made S
    inverse_norm: Tensor | None  # (c·H,) in or out: 1 / |proxy|, see the backend's operand(); None: not normalised

    def classes(self, problem: ClassProblem) -> int:
        """How many classes the chunk holds."""
        return len(self.S) // problem.centers


@dataclass
class ClassSums:
    """What the forward sweep gathers: Σ exp(logit) over all classes but the label's, and the label's own logit.

    The label stays out of the sum, because one number added afterwards costs nothing, and then neither its bias nor
    whether it counts is the kernels' concern.
    """

    shift: Tensor  # (B,) float64 in/out: largest logit so far; −inf: none yet
    total: Tensor  # (B,) float64 in/out: Σ exp(logit − shift) so far
    target: Tensor  # (B,) compute dtype out: scale·s' + bias of the label, once its chunk has passed

    @classmethod
    def empty(cls, size: int, compute: torch.dtype, device: torch.device) -> "ClassSums":
        """Sums over no classes."""
        shift = torch.full((size,), -torch.inf, dtype=torch.float64, device=device)
        return cls(shift, torch.zeros_like(shift), torch.zeros(size, dtype=compute, device=device))

    def log(self) -> Tensor:
        """Log-sum-exp (B,) float64; −inf where no class counts."""
        return self.shift + self.total.log()


@dataclass(frozen=True)
class ClassUpstream:
    """What the backward sweep needs of each sample, (B,) each in the compute dtype, contiguous."""

    lse: Tensor  # +inf where the sum is empty: exp(logit − lse) is 0 there
    dlse: Tensor  # dL/dlse
    dlogit: Tensor  # dL/dlogit of the label, by way of lse and of target
