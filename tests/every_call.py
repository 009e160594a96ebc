"""One small call of every public loss and op, for tests that walk over all of them.

``losses.__all__`` and ``ops.__all__`` are held against these tables, so that a new name without a call fails.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops import losses, ops

B, C, D = 8, 4, 6


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def labels() -> Tensor:
    return torch.arange(B) % C


@dataclass
class Call:
    """A function that is made anew for each call, its tensors by argument name, and its settings."""

    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[], dict[str, Any]]
    differentiable: tuple[str, ...] = ("embeddings",)
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, function: Callable[..., Any] | None = None, **changed: Any) -> Any:
        return (self.make() if function is None else function)(**{**self.inputs(), **self.settings, **changed})

    def differentiated(self, function: Callable[..., Any], inputs: dict[str, Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The first result, and the gradients of what the call differentiates."""
        leaves = [inputs[name].requires_grad_() for name in self.differentiable]
        result = first(self(function, **inputs))
        return result, torch.autograd.grad(result.sum(), leaves) if leaves else ()

    def changed(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The inputs, with every tensor changed; sets of labels are made anew."""

        def apply(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, ops.LabelSets):
                return ops.LabelSets.of(change(value.labels))
            return type(value)(*map(apply, value)) if isinstance(value, tuple) else value

        return {name: apply(value) for name, value in self.inputs().items()}

    def on(self, device: torch.device | str) -> dict[str, Any]:
        """The inputs on ``device``."""
        return self.changed(lambda tensor: tensor.to(device))

    def of(self, dtype: torch.dtype) -> dict[str, Any]:
        """The inputs, floating-point ones in ``dtype``."""
        return self.changed(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def first(results: Any) -> Tensor:
    """The tensor of a call's results that comes first."""
    return results if isinstance(results, Tensor) else results[0]


def batch() -> dict[str, Any]:
    return {"embeddings": random(B, D), "labels": labels()}


def towers() -> dict[str, Any]:
    return {"embeddings": random(B, D), "others": random(B, D, seed=1)}


def of_loss(make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Any]] = batch, **more: Any) -> Call:
    def in_double() -> nn.Module:
        # Under a fake mode parameters can't be converted: tests of it set the default type.
        module = make()
        return module if torch.get_default_dtype() == torch.float64 else module.double()

    return Call(in_double, inputs, **more)


LOSSES: dict[str, Call] = {
    "AdaFaceLoss": of_loss(lambda: losses.AdaFaceLoss(C, D).eval()),  # in training each call changes its means
    "AdaptiveProxyAnchorLoss": of_loss(lambda: losses.AdaptiveProxyAnchorLoss(C, D)),
    "ArcFaceLoss": of_loss(lambda: losses.ArcFaceLoss(C, D)),
    "BSPMLLoss": of_loss(losses.BSPMLLoss),
    "ContrastiveLoss": of_loss(losses.ContrastiveLoss),
    "CosFaceLoss": of_loss(lambda: losses.CosFaceLoss(C, D)),
    "InfoNCELoss": of_loss(losses.InfoNCELoss, towers, differentiable=("embeddings", "others")),
    "LanguageGuidanceLoss": of_loss(
        losses.LanguageGuidanceLoss, lambda: {"embeddings": random(B, D), "text_embeddings": random(B, 2, 5, seed=1)}
    ),
    "MemoryContrastiveLoss": of_loss(losses.MemoryContrastiveLoss),
    "MultiSimilarityLoss": of_loss(losses.MultiSimilarityLoss),
    "NTXentLoss": of_loss(losses.NTXentLoss),
    "NormalizedSoftmaxLoss": of_loss(lambda: losses.NormalizedSoftmaxLoss(C, D)),
    "ProcSimLoss": of_loss(lambda: losses.ProcSimLoss(C, D)),
    "ProxyAnchorLoss": of_loss(lambda: losses.ProxyAnchorLoss(C, D)),
    "ProxyNCALoss": of_loss(lambda: losses.ProxyNCALoss(C, D)),
    "SigmoidLoss": of_loss(losses.SigmoidLoss, towers, differentiable=("embeddings", "others")),
    "SmoothProxyAnchorLoss": of_loss(
        lambda: losses.SmoothProxyAnchorLoss(C, D),
        lambda: {"embeddings": random(B, D), "confidences": random(B, C, seed=1).sigmoid()},
    ),
    "SoftTripleLoss": of_loss(lambda: losses.SoftTripleLoss(C, D, 2)),
    "SubCenterArcFaceLoss": of_loss(lambda: losses.SubCenterArcFaceLoss(C, D)),
    "SupConLoss": of_loss(losses.SupConLoss),
    "SuperContrastiveLoss": of_loss(losses.SuperContrastiveLoss),
    "SuperLoss": of_loss(losses.SuperLoss, lambda: {"losses": random(B).abs()}, differentiable=("losses",)),
}
NO_LOSS = {"Observation", "ProcSimStep", "load_class_matrix", "start_class_matrix"}


def scales() -> dict[str, Any]:
    return dict.fromkeys(("positive_scale", "negative_scale"), torch.tensor(0.1, dtype=torch.float64))


def proxied() -> dict[str, Any]:
    return {"embeddings": random(B, D), "proxies": random(C, D, seed=1)}


def anchored() -> dict[str, Any]:
    zeros = torch.zeros(B, dtype=torch.float64)
    return proxied() | {"sets": ops.LabelSets.of(labels()), "biases": ops.AnchorBiases(zeros, zeros)}


def summed() -> dict[str, Any]:
    return batch() | {"candidates": random(B, D, seed=1), "candidate_labels": labels()} | scales()


def self_paced() -> dict[str, Any]:
    terms = {"positive": random(B).abs(), "negative": random(B, seed=1).abs()}
    return {"weights": torch.full((B,), 0.5, dtype=torch.float64), **terms, "labels": labels()}


def of_op(name: str, inputs: Callable[[], dict[str, Any]], *differentiable: str, **settings: Any) -> Call:
    return Call(lambda: getattr(ops, name), inputs, differentiable, settings)


LSE = {"alpha": 2.0, "beta": 50.0, "base": 0.5}
HINGE = {"positive_margin": 0.9, "negative_margin": 0.1}
PROXIED = ("embeddings", "proxies")
PAIRS = ("embeddings", "candidates")
_CALLS = (
    of_op("anchor_loss", lambda: anchored() | scales(), *PROXIED, alpha=32.0),
    of_op("anchor_lse", anchored, *PROXIED, alpha=32.0),
    of_op("bessel_ratio", lambda: {"kappa": random(B).exp()}, "kappa", v=2.0),
    of_op("class_lse", lambda: proxied() | {"labels": labels()}, *PROXIED),
    of_op("confidence", lambda: {"losses": random(B).abs()}, threshold=0.5, lam=1.0),
    of_op("fit_vmf", lambda: {"sums": random(C, D), "counts": torch.full((C,), 99)}),
    of_op("lambertw", lambda: {"x": random(B).exp()}, "x"),
    of_op("log_bessel_i", lambda: {"kappa": random(B).exp()}, "kappa", v=2.0),
    of_op("nearest", lambda: {"queries": random(B, D), "gallery": random(B, D, seed=1)}, k=2),
    of_op("otsu_confidence", lambda: {"losses": random(B).abs()}, lam=1.0),
    of_op("otsu_threshold", lambda: {"losses": random(B).abs()}),
    of_op("pair_hinge", batch, "embeddings", **HINGE),
    of_op("pair_hinge_sum", summed, *PAIRS, **HINGE),
    of_op("pair_lse", batch, "embeddings", **LSE),
    of_op("pair_lse_sum", summed, *PAIRS, **LSE),
    of_op("self_paced_descent", self_paced, lam=1.0, mu=0.1, steps=3),
    of_op("self_paced_sweep", self_paced, lam=1.0, mu=0.1, learning_rate=0.5, steps=9),
    of_op("similarity", proxied, *PROXIED),
    of_op("superloss", lambda: {"losses": random(B).abs()}, "losses", tau=0.5, lam=1.0),
    of_op(
        "vmf_log_likelihood",
        lambda: {"x": random(B, D), "mean_direction": random(C, D, seed=1), "kappa": random(C).exp()},
        *("x", "mean_direction", "kappa"),
    ),
    of_op("vmf_log_normalizer", lambda: {"kappa": random(B).exp()}, "kappa", dim=D),
    of_op("vmf_log_peak", lambda: {"kappa": random(B).exp()}, "kappa", dim=D),
)
OPS = {call.make().__name__: call for call in _CALLS}
EVERY = LOSSES | OPS
PUBLIC_LOSSES = set(losses.__all__) - NO_LOSS
# A setting of the process computes nothing.
NO_OP = {"limit_saved_bytes"}
PUBLIC_OPS = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))} - NO_OP
