"""Sample weights of balanced self-paced metric learning: two solvers of one objective, on the host.

With fixed terms ξ⁺, ξ⁻ of the samples, ζ(c) = Σ w of class c, N^c its size and w̄_c = ζ(c)/N^c,

    L(w) = Σ_c Σ_{a∈c} w_a/N^c { (ζ(c) − w_a)/(N^c − 1) ξ⁺_a + 1/(C−1) Σ_{k≠c} w̄_k ξ⁻_a }
           − λ Σ_c w̄_c + μ/(C−1) Σ_{c<k} (w̄_c − w̄_k)²,          w ∈ [0, 1]^N.                          Eq. 6

Classes are the labels that occur. A class of one sample has no positive pair, and a single class no other one: their
terms are 0.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import has_no_values, refuse_tracing
from robustdml_ops.engine.validation import (
    INTEGERS,
    check_finite_numbers,
    check_local,
    check_positive,
    check_sizes,
    check_vector,
)

Vector = NDArray[np.float64]
# Beyond it the product with a class's size may overflow.
MOST_MU = 1e100


@dataclass(frozen=True)
class SelfPacedTerms:
    """ξ⁺ and ξ⁻ on the host, sorted by class. Classes are the labels that occur, renumbered."""

    positive: Tensor  # (N,) float32 or float64
    negative: Tensor  # (N,), the same type
    classes: Tensor  # (N,) int64, ascending, 0 … C − 1
    names: Tensor  # (C,) int64: the labels
    order: Tensor  # (N,) int64: the sample at each place

    @classmethod
    def of(cls, positive: Tensor, negative: Tensor, labels: Tensor) -> "SelfPacedTerms":
        """Sort terms in the order of the samples, with any integers as labels."""
        names, classes = labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        classes, order = classes.sort(stable=True)
        return cls(positive[order], negative[order], classes, names, order)

    @cached_property
    def sizes(self) -> Tensor:
        """(C,) int64: N^c, at least 1."""
        return torch.bincount(self.classes, minlength=len(self.names))

    @cached_property
    def starts(self) -> Tensor:
        """(C + 1,) int64: class c is at starts[c] … starts[c + 1] − 1."""
        return torch.nn.functional.pad(self.sizes.cumsum(0), (1, 0))

    def unsort(self, values: Tensor) -> Tensor:
        """(N,) in the order of the samples."""
        return torch.empty_like(values).index_copy_(0, self.order, values)


@torch.no_grad()
def self_paced_sweep(
    weights: Tensor,
    positive: Tensor,
    negative: Tensor,
    labels: Tensor,
    *,
    lam: float,
    mu: float,
    learning_rate: float | Tensor,
    steps: int,
    classes_per_step: int = 16,
    samples_per_class: int = 4,
    decay: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """Doubly stochastic projected coordinate descent, Algorithm 3. Not differentiable.

    A step draws a sample a, K others of its class c, P other classes and K samples of each, all without replacement and
    uniformly (fewer where there are not as many), and moves w_a to clip(w_a − γ G, 0, 1) with

        G = 1/N^c ( mean_p w_p(ξ⁺_p + ξ⁺_a) + mean_{k,n} w_n(ξ⁻_n + ξ⁻_a) + 2μ(w̄_c − mean_{k≠c} w̄_k) − λ ),    Eq. 8

    an unbiased estimate of ∂L/∂w_a, and ∂L/∂w_a itself where the samples are all there are. The means w̄ are over whole
    classes, kept as running sums.

    Parameters
    ----------
    weights : Tensor
        (N,) floating point in [0, 1], where the descent starts; on any device, like the other tensors.
    positive, negative : Tensor
        (N,) floating point: ξ⁺ and ξ⁻.
    labels : Tensor
        (N,) integers, any.
    lam, mu : float
        Age parameter λ > 0 and weight μ ≥ 0 of the balance term.
    learning_rate : float or Tensor
        γ > 0 for all classes (the paper), or (C,) one for each class, where labels are 0 … C − 1. Steps of a class are
        γ/N^c long, and come to rest below N^c²/μ (half of it lands in the minimum of the coordinate).
    steps : int
        Number of steps, T.
    classes_per_step, samples_per_class : int
        P and K. A step costs O(P·K²).
    decay : float
        γ of step t is γ / (1 + decay·t).
    seed : int
        0 … 2⁶⁴ − 1. Random numbers are a function of seed and step alone: a seed gives the same bits on every machine,
        with any number of threads.

    Returns
    -------
    Tensor
        (N,) as ``weights``, in its type and on its device. float64 weights are rounded to float64 at each step, others
        to float32; each step computes in float64.

    Raises
    ------
    ValueError, TypeError
        A setting or a weight out of range, NaN or inf in the terms, shapes or types that do not fit.
    RuntimeError
        The native module is not installed: take :func:`self_paced_descent`.

    Notes
    -----
    Source: Zhang, Luo, Gu (AAAI 2023), Algorithm 3 and Eq. 8.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import self_paced_sweep
    >>> xi, y = torch.tensor([0.1, 0.1, 2.0, 0.1, 0.1]), torch.tensor([0, 0, 0, 1, 1])
    >>> self_paced_sweep(torch.ones(5), xi, 0 * xi, y, lam=1.0, mu=0.0, learning_rate=1.0, steps=100)
    tensor([1., 1., 0., 1., 1.])
    """
    check_settings(lam, mu, steps)
    check_sizes(classes_per_step=classes_per_step, samples_per_class=samples_per_class)
    if not 0 <= decay < math.inf:
        raise ValueError(f"decay must be at least 0 and finite, got {decay}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
    w, terms = _on_host(weights, positive, negative, labels, torch.float32)
    if len(w):
        if reason := module.unavailable(w.device, w.dtype):
            raise RuntimeError(f"self_paced_sweep can't run here: {reason}; self_paced_descent runs without it")
        rates = _rates(learning_rate, terms) / terms.sizes
        getattr(module.library, f"self_paced_sweep_{module.SUFFIX[w.dtype]}")(
            weights=w.data_ptr(),
            positive=terms.positive.data_ptr(),
            negative=terms.negative.data_ptr(),
            classes=terms.classes.data_ptr(),
            starts=terms.starts.data_ptr(),
            rates=rates.data_ptr(),
            N=len(w),
            C=len(terms.names),
            lam=lam,
            mu=mu,
            decay=decay,
            classes_per_step=classes_per_step,
            samples_per_class=samples_per_class,
            seed=seed,
            steps=steps,
        )
    return terms.unsort(w).to(weights)


@torch.no_grad()
def self_paced_descent(
    weights: Tensor,
    positive: Tensor,
    negative: Tensor,
    labels: Tensor,
    *,
    lam: float,
    mu: float,
    steps: int = 1000,
    tolerance: float = 1e-4,
) -> Tensor:
    """Projected descent along the exact gradient of Eq. 6, which class sums give in O(N). Not differentiable.

    It has no random numbers and no learning rate, and the objective never rises: the step is 1 over a bound of the
    curvature, in the norm Σ_a v_a²/N^c that makes samples of large and small classes equally fast.

    Parameters
    ----------
    weights, positive, negative, labels, lam, mu
        As in :func:`self_paced_sweep`, and so are the errors.
    steps : int
        The most steps.
    tolerance : float
        Stop where the projected gradient N^c ∂L/∂w_a of every weight is below it.

    Returns
    -------
    Tensor
        (N,) as ``weights``, in its type and on its device; computed in float64, on the host.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import self_paced_descent
    >>> xi, y = torch.tensor([0.1, 0.1, 2.0, 0.1, 0.1]), torch.tensor([0, 0, 0, 1, 1])
    >>> self_paced_descent(torch.ones(5), xi, 0 * xi, y, lam=1.0, mu=0.0)
    tensor([1., 1., 0., 1., 1.])
    """
    check_settings(lam, mu, steps)
    w, terms = _on_host(weights, positive, negative, labels, torch.float64)
    if len(w):
        w = torch.from_numpy(descend(ScaledGradient(terms, lam, mu), w.numpy(), steps, tolerance))
    return terms.unsort(w).to(weights)


def check_settings(lam: float, mu: float, steps: int) -> None:
    """Raise unless λ is positive, μ a weight that no product overflows with, and the steps a number of at least 0."""
    check_positive(lam=lam)
    check_finite_numbers(mu=mu)
    if not 0 <= float(mu) <= MOST_MU:
        raise ValueError(f"mu must be at least 0 and at most {MOST_MU:g}, got {mu}: 0 is plain self-paced learning")
    check_sizes(least=0, steps=steps)


def _on_host(
    weights: Tensor, positive: Tensor, negative: Tensor, labels: Tensor, least: torch.dtype
) -> tuple[Tensor, SelfPacedTerms]:
    """Weights and terms on the host, sorted by class, in float64, or ``least`` where the weights are not."""
    check_local("labels", labels)
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.dtype not in INTEGERS:
        raise ValueError("labels must be a vector of integers, one for each sample")
    refuse_tracing()
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError("the descent is sequential work on values, and torch.func has none for it: call it outside")
    vectors = {"weights": weights, "positive": positive, "negative": negative}
    for name, value in vectors.items():
        check_vector(name, value, len(labels))
        if has_no_values(value):
            raise ValueError(f"{name} is a meta or fake tensor, and the descent is sequential work on values")
    dtype = torch.promote_types(torch.float64 if weights.dtype == torch.float64 else torch.float32, least)
    host = []
    for name, value in vectors.items():
        host.append(value.detach().to("cpu", dtype))
        valid = torch.isfinite(host[-1]) if name != "weights" else (host[-1] >= 0) & (host[-1] <= 1)
        if not valid.all():
            where = int((~valid).nonzero()[0])
            wanted = "finite: look for NaN in the embeddings" if name != "weights" else "in [0, 1]"
            raise ValueError(f"{name}[{where}] = {float(value[where])} must be {wanted}")
    terms = SelfPacedTerms.of(host[1], host[2], labels.detach().cpu().long())
    return host[0][terms.order], terms


def _rates(learning_rate: float | Tensor, terms: SelfPacedTerms) -> Tensor:
    """γ of each class that occurs, (C,) float64."""
    if isinstance(learning_rate, Tensor):
        if learning_rate.dim() != 1 or int(terms.names[-1]) >= len(learning_rate) or int(terms.names[0]) < 0:
            raise ValueError(
                f"learning_rate has shape {tuple(learning_rate.shape)}, and labels are {int(terms.names[0])} … "
                f"{int(terms.names[-1])}: one for each of the classes 0 … C − 1 is needed, or a number for all"
            )
        rates = learning_rate.detach().to("cpu", torch.float64)[terms.names]
    else:
        check_finite_numbers(learning_rate=learning_rate)
        rates = torch.full((len(terms.names),), float(learning_rate), dtype=torch.float64, device="cpu")
    if not ((rates > 0) & torch.isfinite(rates)).all():
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
    return rates


class ScaledGradient:
    """N^c ∂L/∂w_a of all samples, sorted by class, from class sums: O(N)."""

    def __init__(self, terms: SelfPacedTerms, lam: float, mu: float) -> None:
        self.lam, self.mu = lam, mu
        self.positive, self.negative = (xi.numpy().astype(np.float64) for xi in (terms.positive, terms.negative))
        self.starts, self.sizes = terms.starts.numpy()[:-1], terms.sizes.numpy()
        self.partners = np.maximum(self.sizes - 1, 1)
        self.others = max(len(self.sizes) - 1, 1)

    def __call__(self, w: Vector) -> Vector:
        """The scaled gradient (N,) at the weights w (N,)."""
        zeta, pull, push = (
            np.add.reduceat(values, self.starts) for values in (w, w * self.positive, w * self.negative)
        )
        mean, push = zeta / self.sizes, push / self.sizes
        mean_of_others = (mean.sum() - mean) / self.others
        constant = pull / self.partners + (push.sum() - push) / self.others - self.lam
        if len(mean) > 1:
            constant += 2 * self.mu * (mean - mean_of_others)
        of_positive = self._spread(zeta / self.partners) - w * self._spread(2 / self.partners)
        gradient = self._spread(constant) + of_positive * self.positive
        gradient += self._spread(mean_of_others) * self.negative
        return gradient

    @property
    def lipschitz(self) -> float:
        """A bound of the curvature: the largest row sum of |Hessian|, scaled by N^c."""
        # The row sums of the ξ terms are the gradient at w = 1 without λ and μ; the balance term adds at most 4μ.
        without = self(np.ones_like(self.positive)) + self.lam
        return max(float(without.max()) + 4 * self.mu, float(np.finfo(np.float64).tiny))

    def _spread(self, of_class: Vector) -> Vector:
        return np.repeat(of_class, self.sizes)


def descend(gradient: ScaledGradient, w: Vector, steps: int, tolerance: float) -> Vector:
    """Projected steps of length 1/curvature from w (N,), until every projected gradient is below ``tolerance``."""
    rate = 1 / gradient.lipschitz
    for _ in range(steps):
        with np.errstate(over="ignore"):  # a small curvature gives an infinite step, which is clipped
            moved = np.clip(w - rate * gradient(w), 0, 1)
        change, w = float(np.abs(moved - w).max()), moved
        if change <= rate * tolerance:
            break
    return w
