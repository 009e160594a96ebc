"""Weights of the training samples by balanced self-paced learning."""

import math

import torch
from torch import Tensor

from robustdml_ops.engine.shards import TypedBuffers
from robustdml_ops.engine.validation import (
    INTEGERS,
    check_choice,
    check_matrix,
    check_positive,
    check_same_device,
    check_sizes,
)
from robustdml_ops.ops import pair_lse, self_paced_descent, self_paced_sweep
from robustdml_ops.ops.self_paced import check_settings
from robustdml_ops.robust.checked_batch import check_ddp_buffers, check_ids

_STEPS_PER_SAMPLE = 160  # of Algorithm 3: 10⁷ steps for 60 000 samples
_EXACT_STEPS = 1000
_SLOWDOWN = 20  # first step size / last step size


class BalancedSelfPaced(TypedBuffers):
    """One weight in [0, 1] per training sample; samples far from their class get weight 0, at first or for good.

    Alternate between training with :class:`robustdml_ops.losses.BSPMLLoss` on the weights and :meth:`update`
    (Algorithm 1). An update minimises Eq. 6, see ``docs/equations.md``, of a sample's two terms ξ⁺ and ξ⁻ of the
    multi-similarity loss against the whole training set. The larger λ, the age, the harder the samples that are
    admitted; μ keeps the mean weights of the classes close to each other.

    ``sample_weights`` (N,) float32 are 1 before the first update; ``positive`` and ``negative`` (N,) float32 are ξ⁺ and
    ξ⁻ of the last, NaN where a sample was never observed; ``lam`` () float64 is λ of the next, ``iteration`` () int64
    counts them.

    A class of one sample has no positive pair: ξ⁺ = 0. With a single class ξ⁻ and the balance term are 0. All state is
    in buffers, whose types ``.half()`` and the like do not change; a resumed run equals an unbroken one bit for bit.

    Source: Zhang, Luo, Gu, "Denoising Multi-Similarity Formulation: A Self-paced Curriculum-Driven Approach for Robust
    Metric Learning", AAAI 2023, Algorithms 1 and 3, Eqs. 3, 6, 8 and 14.

    Parameters
    ----------
    labels : Tensor
        (N,) integers ≥ 0: classes of the training samples, in the order of their ids 0 … N−1.
    lam : float
        λ of the first update, > 0. A sample is admitted if its ξ⁺ + ξ⁻ plus the mean of ξ⁺ + ξ⁻ over the samples kept
        is below λ. ξ⁺ grows as log(N^c)/α, so large classes need a large λ: compare it with 2·:attr:`positive`.
    growth, lam_max : float
        c ≥ 1 and λ_∞ ≥ λ: each update multiplies λ by c, up to λ_∞, which the paper tunes in [1, 5].
    mu : float, optional
        μ ≥ 0; by default λ_∞, as in the paper. 0: plain self-paced learning.
    solver : {"exact", "stochastic"}
        "exact": :func:`robustdml_ops.ops.self_paced_descent`, along the exact gradient. "stochastic": Algorithm 3 of
        the paper, :func:`robustdml_ops.ops.self_paced_sweep`, which is slower and ends at a higher objective.
        Both run on the host.
    steps : int, optional
        Steps of the solver in an update. By default 160·N of Algorithm 3, at most 1000 of the exact descent.
    learning_rate, classes_per_step, samples_per_class : float, int, int
        Of Algorithm 3: γ of class c is learning_rate · N^c · min(1, N^c/2μ) / (1 + 20 t/T); P and K.
    alpha, beta, base : float
        α, β, ρ of ξ.
    seed : int
        0 … 2³¹ − 1. Seed and number of the update fix all random numbers, on every machine.
    backend : str, optional
        For ξ; None: the fastest that serves the device.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.robust import BalancedSelfPaced
    >>> embeddings = torch.eye(2)[[0, 0, 0, 1, 1, 1, 0]]  # the last one lies in the other class
    >>> paced = BalancedSelfPaced(torch.tensor([0, 0, 0, 1, 1, 1, 1]), lam=1.5, growth=1.2, lam_max=3.0, mu=0.5)
    >>> paced.update(embeddings)
    >>> paced.weights(torch.tensor([0, 5, 6]))
    tensor([1., 1., 0.])
    >>> paced.maw, paced.lam
    (0.875, tensor(1.8000, dtype=torch.float64))
    """

    labels: Tensor
    sample_weights: Tensor
    positive: Tensor
    negative: Tensor
    lam: Tensor
    iteration: Tensor
    shown = ("growth", "lam_max", "mu", "solver")

    def __init__(
        self,
        labels: Tensor,
        lam: float = 1.0,
        growth: float = 1.1,
        lam_max: float = 5.0,
        mu: float | None = None,
        *,
        solver: str = "exact",
        steps: int | None = None,
        learning_rate: float = 0.3,
        classes_per_step: int = 16,
        samples_per_class: int = 4,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 1.0,
        seed: int = 0,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        mu = lam_max if mu is None else mu
        check_positive(lam=lam)
        if not 1 <= growth < math.inf:
            raise ValueError(f"growth must be at least 1, got {growth}: a falling λ would drop admitted samples")
        if not lam <= lam_max < math.inf:
            raise ValueError(f"lam_max must be at least lam = {lam} and finite, got {lam_max}")
        check_settings(lam, mu, 0 if steps is None else steps)
        check_choice(("exact", "stochastic"), solver=solver)
        check_positive(learning_rate=learning_rate)
        check_sizes(classes_per_step=classes_per_step, samples_per_class=samples_per_class)
        if not 0 <= seed < 2**31:
            raise ValueError(f"seed must be from 0 to 2**31 - 1, got {seed}")
        if labels.dim() != 1 or labels.dtype not in INTEGERS or len(labels) == 0 or int(labels.min()) < 0:
            raise ValueError(
                f"labels must be integers of at least 0, one for each training sample, got {tuple(labels.shape)} of "
                f"{labels.dtype}"
            )
        self.growth, self.lam_max, self.mu = growth, lam_max, mu
        self.solver, self.steps, self.learning_rate = solver, steps, learning_rate
        self.seed, self.backend = seed, backend
        self.classes_per_step, self.samples_per_class = classes_per_step, samples_per_class
        self.alpha, self.beta, self.base = alpha, beta, base
        self.register_buffer("labels", labels.detach().clone().long())
        self.register_buffer("sample_weights", torch.ones(len(labels), device=labels.device))
        for name in ("positive", "negative"):
            self.register_buffer(name, torch.full((len(labels),), torch.nan, device=labels.device))
        self.register_buffer("lam", torch.tensor(lam, dtype=torch.float64, device=labels.device))
        self.register_buffer("iteration", torch.zeros((), dtype=torch.int64, device=labels.device))

    @torch.no_grad()
    def observe(self, embeddings: Tensor, sample_ids: Tensor) -> None:
        """Compute ξ of a batch against this batch alone, if embedding the whole training set is too expensive.

        ``embeddings`` (B, D) are those of a training step, of any scale; ``sample_ids`` (B,) integers in 0 … N−1. Wrong
        shapes, types, devices or ids raise, on the CPU NaN or inf, too; on a GPU these count as not observed.
        """
        check_ddp_buffers(self, divided=False)
        check_matrix("embeddings", embeddings)
        self._store(embeddings, check_ids(sample_ids, len(embeddings), len(self.labels), self.labels.device))

    @torch.no_grad()
    def update(self, embeddings: Tensor | None = None) -> None:
        """Solve for the weights, starting from the present ones, then increase λ: an iteration of Algorithm 1.

        Parameters
        ----------
        embeddings : Tensor, optional
            (N, D), floating point, any scale, of all training samples in the order of their ids: ξ is exact, over all
            pairs. None: ξ of the last :meth:`observe` of each sample; samples never observed are left out and keep
            their weight.

        Raises
        ------
        ValueError, TypeError
            Wrong shapes, types or devices, NaN or inf, nothing observed. The state is as before.
        """
        if embeddings is not None:
            check_matrix("embeddings", embeddings)
            if len(embeddings) != len(self.labels):
                raise ValueError(
                    f"embeddings must have {len(self.labels)} rows, one for each training sample, got "
                    f"{len(embeddings)}: use observe() for a batch"
                )
            finite = torch.isfinite(embeddings).all(1).cpu()
            if not finite.all():  # one row would spoil the terms of all others
                row = int((~finite).nonzero()[0])
                raise ValueError(f"embeddings[{row}] has NaN or inf: look for an overflow in the model")
            self._store(embeddings, torch.arange(len(self.labels), device=self.labels.device))
        seen = torch.isfinite(self.positive + self.negative)
        if not seen.any():
            raise ValueError("nothing was observed: pass embeddings, or call observe() on batches before")
        self.sample_weights[seen] = self._solve(seen)
        self.lam.copy_((self.growth * self.lam).clamp(max=self.lam_max))
        self.iteration += 1

    def weights(self, sample_ids: Tensor) -> Tensor:
        """Weights of a batch: (B,) float32 for ``sample_ids`` (B,), integers in 0 … N−1."""
        return self.sample_weights[check_ids(sample_ids, len(sample_ids), len(self.labels), self.labels.device)]

    @property
    def maw(self) -> float:
        """Mean of the classes' average weights, Eq. 14; on a GPU, waits for it."""
        return float(self._class_means().mean())

    @property
    def sdaw(self) -> float:
        """Standard deviation of the classes' average weights, Eq. 14; on a GPU, waits for it."""
        return float(self._class_means().std(correction=0))

    def _store(self, embeddings: Tensor, ids: Tensor) -> None:
        check_same_device(embeddings=embeddings, labels=self.labels)
        terms = pair_lse(
            embeddings, self.labels[ids], alpha=self.alpha, beta=self.beta, base=self.base, backend=self.backend
        )
        self.positive[ids] = (terms.positive / self.alpha).to(self.positive.dtype)
        self.negative[ids] = (terms.negative / self.beta).to(self.negative.dtype)

    def _solve(self, seen: Tensor) -> Tensor:
        """New weights of the samples seen."""
        problem = (self.sample_weights[seen], self.positive[seen], self.negative[seen], self.labels[seen])
        lam = float(self.lam)
        if self.solver == "exact":
            steps = _EXACT_STEPS if self.steps is None else self.steps
            return self_paced_descent(*problem, lam=lam, mu=self.mu, steps=steps)
        steps = _STEPS_PER_SAMPLE * len(problem[0]) if self.steps is None else self.steps
        sizes = torch.bincount(problem[3].cpu()).double()
        overshoot = 1.0 if self.mu == 0 else (sizes / (2 * self.mu)).clamp(max=1)
        return self_paced_sweep(
            *problem,
            lam=lam,
            mu=self.mu,
            learning_rate=self.learning_rate * sizes * overshoot,
            steps=steps,
            classes_per_step=self.classes_per_step,
            samples_per_class=self.samples_per_class,
            decay=_SLOWDOWN / max(steps, 1),
            seed=(self.seed << 32) | int(self.iteration),
        )

    def _class_means(self) -> Tensor:
        """Average weights of the classes that have samples, (C,) float64, on the host."""
        labels = self.labels.cpu()
        sums = torch.bincount(labels, self.sample_weights.cpu().double())
        counts = torch.bincount(labels)
        return sums[counts > 0] / counts[counts > 0]
