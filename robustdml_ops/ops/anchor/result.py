"""Wanted results of an anchor sweep, and the results."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Wanted:
    """Which results of a sweep are wanted."""

    lse: bool = False  # per anchor, (C,) each; otherwise only their weighted sum
    embeddings: bool = False
    proxies: bool = False
    biases: bool = False

    @staticmethod
    def of(inputs: Sequence[Tensor | None]) -> list[bool]:
        """From inputs that require a gradient, of (embeddings, proxies, positive bias, negative bias, anchor bias)."""
        needs = [tensor is not None and tensor.requires_grad for tensor in inputs]
        return [needs[4], needs[0], needs[1], needs[2] or needs[3]]

    @property
    def gradients(self) -> bool:
        """Whether any gradient is wanted."""
        return self.embeddings or self.proxies or self.biases


@dataclass
class SweepResult:
    """Results of a sweep; None where not wanted."""

    total: Tensor | None = None  # () float64: Σ_p upstream · log-sum-exp
    lse_positive: Tensor | None = None  # (C,)
    lse_negative: Tensor | None = None  # (C,)
    dembeddings: Tensor | None = None  # (B, D), compute type
    dproxies: Tensor | None = None  # (C, D), dtype of the proxies
    dpositive_bias: Tensor | None = None  # (B,)
    dnegative_bias: Tensor | None = None  # (B,)
