"""Smooth Proxy-Anchor, Roig et al. 2020: confidences in place of labels."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import without_autocast
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.similarity_chunks import chunk_rows
from robustdml_ops.engine.validation import (
    check_finite_numbers,
    check_matrix,
    check_positive,
    check_same_device,
    check_vector,
    require,
)
from robustdml_ops.losses.families.anchor import AnchorFamilyLoss, AnchorTerms
from robustdml_ops.losses.families.class_matrix import OWN
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, Reduction
from robustdml_ops.ops import AnchorBiases
from robustdml_ops.ops.anchor.backends import ConfidenceSets

Factors = tuple[Tensor, Tensor, Tensor]


class SmoothProxyAnchorLoss(AnchorFamilyLoss):
    """Proxy-Anchor whose sets and weights are given by confidences c_xp that sample x belongs to class p.

        w_xp = σ(β(c_xp − λ)),  X_p⁺ = {x: c_xp > λ},  X_p⁻ the rest
        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{X_p⁺} w_xp e^{−α(s−δ)}) + 1/|P⁻| Σ_{p∈P⁻} log(1 + Σ_{X_p⁻} (1−w_xp) e^{α(s+δ)})

    P⁺ and P⁻ are the proxies with a non-empty X_p⁺ and X_p⁻, counted in one pass over the confidences before the sweep.
    The confidences are constants of this loss.

    Source: Roig, Varas, Masuda, Riveiro, Bou-Balust, "Smooth Proxy-Anchor Loss for Noisy Metric Learning", Eqs. 5, 7.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D. ``.proxies`` is a parameter (C, D).
    margin, alpha : float
        Margin δ of the cosines, and scale α > 0 of the exponents.
    beta, threshold : float
        β > 0, the steepness of the weights, and λ in (0, 1).
    drop_similar_negatives : float, optional
        In (−1, 1]: negatives whose cosine with the proxy exceeds this are left out, as they may be of its class. The
        selection is constant in the gradients. None: all negatives stay.
    reduction : {"mean", "none"}
        ``"mean"``: the loss, (). ``"none"``: its terms by proxy, (C,), whose sum is the loss.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.
    weight_init_func : callable, optional
        Fills the class matrix in place. None: as pytorch-metric-learning, ``normal_`` or in Proxy-Anchor losses
        ``kaiming_normal_(mode="fan_out")``.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import SmoothProxyAnchorLoss
    >>> loss_function = SmoothProxyAnchorLoss(num_classes=10, embedding_size=4)
    >>> hidden, weight, bias = torch.randn(8, 16), torch.randn(10, 16), torch.zeros(10)
    >>> dense = loss_function(embeddings := torch.randn(8, 4), (hidden @ weight.t() + bias).sigmoid())
    >>> factored = loss_function(embeddings, (hidden, weight, bias))  # the same, and B×C is never formed
    >>> torch.allclose(dense, factored, rtol=1e-4)
    True
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
        beta: float = 100,
        threshold: float = 0.1,
        *,
        drop_similar_negatives: float | None = None,
        reduction: Reduction = "mean",
        backend: Backend | None = None,
        weight_init_func: Any = None,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_size,
            margin,
            alpha,
            reduction=reduction,
            backend=backend,
            weight_init_func=weight_init_func,
            drop_similar_negatives=drop_similar_negatives,
        )
        if drop_similar_negatives == OWN:  # type: ignore[comparison-overlap]
            raise ValueError("drop_similar_negatives='own' needs labels, and there are confidences: give a cosine")
        check_finite_numbers(threshold=threshold)
        check_positive(beta=beta)
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must lie in (0, 1), got {threshold}")
        self.beta, self.threshold = beta, threshold

    def forward(  # type: ignore[override]  # confidences stand in for labels
        self, embeddings: Tensor, confidences: Tensor | Factors, *, sample_weights: Tensor | None = None
    ) -> Tensor:
        """Loss of a batch, () or (C,), see ``reduction``. An empty batch gives 0, connected to the graph.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale.
        confidences : Tensor or tuple of three Tensors
            (B, C) in [0, 1]; or (hidden (B, K), weight (C, K), bias (C,)), which stand for σ(hidden·weightᵀ + bias).
            None of them may require a gradient.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the exponentials in both sums; differentiable where positive. A sample of weight 0 is
            absent.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN, inf or a confidence outside [0, 1] (on a GPU a
            device-side assertion for the confidences, a NaN loss for the embeddings).
        """
        sets: list[ConfidenceSets] = []

        def check() -> OwnRows:
            inputs = LossInputs(embeddings, None, sample_weights=sample_weights)
            self._check_shapes(inputs)
            sets.append(self._sets(embeddings, confidences))
            return {**self._own_samples(inputs), "hidden": sets[0].hidden}

        def loss(embeddings: Tensor, sample_weights: Tensor | None, hidden: Tensor) -> Tensor:
            joint = LossInputs(embeddings, None, sample_weights=sample_weights)
            return self._of_sets(joint, replace(sets[0], hidden=hidden))

        return self._of_joint_batch(check, loss)

    def _of_sets(self, inputs: LossInputs, sets: ConfidenceSets) -> Tensor:
        shards, (bias, present) = self.shards, self._log_weights(inputs)
        counts = count_confidences(sets, len(shards.local_shard(self.proxies)), present, bias.dtype)
        if shards.divided:
            positive, negative = shards.sum_over_processes(torch.stack([counts.positive, counts.negative]))
            extremes = (shards.min_over_processes(counts.lowest), -shards.min_over_processes(-counts.highest))
            counts = ConfidenceCounts(positive, negative, *extremes)
        if len(inputs.embeddings):
            # An absent sample leaves ±inf where it is the only one; NaN fails both comparisons.
            require(
                (counts.lowest.clamp(max=1) >= 0) & (counts.highest.clamp(min=0) <= 1),
                lambda: (
                    f"confidences must lie in [0, 1], got {float(counts.lowest):.4g} to {float(counts.highest):.4g}"
                ),
            )
        rows = self._step_rows(inputs.embeddings, None)
        terms = AnchorTerms(rows, sets, AnchorBiases(bias, bias), counts.positive, counts.negative)
        return self._loss_of_anchors(inputs.embeddings, terms)

    def _sets(self, embeddings: Tensor, confidences: Tensor | Factors) -> ConfidenceSets:
        B, C = len(embeddings), self.num_classes
        if self.shards.divided:
            if isinstance(confidences, Tensor):
                raise ValueError(
                    "confidences (B, C) have all classes, and those of this loss are sharded: give the factors "
                    "(hidden, weight, bias), as ConfidenceHead.factors does"
                )
            hidden, *of_classes = confidences
            confidences = (hidden, *(self.shards.select_local(part) for part in of_classes))  # type: ignore[assignment]
            C = len(self.shards.local_shard(self.proxies))
        if isinstance(confidences, Tensor):
            given = {"confidences": check_matrix("confidences", confidences, columns=C)}
        elif isinstance(confidences, tuple) and len(confidences) == 3:
            hidden = check_matrix("hidden", confidences[0])
            weight = check_matrix("weight", confidences[1], columns=hidden.shape[1])
            given = {"hidden": hidden, "weight": weight, "bias": check_vector("bias", confidences[2], C)}
            if len(weight) != C:
                raise ValueError(f"weight must have {C} rows, one for each class, got shape {tuple(weight.shape)}")
        else:
            raise TypeError(
                f"confidences must be a tensor (B, C) or (hidden, weight, bias), not {type(confidences).__name__}"
            )
        name, rows = next(iter(given.items()))
        if len(rows) != B:
            raise ValueError(f"{name} must have {B} rows, one for each embedding, got shape {tuple(rows.shape)}")
        for name, value in given.items():
            if value.requires_grad:
                raise ValueError(
                    f"{name} requires a gradient, and the confidences are constants of this loss: pass {name}.detach()"
                )
        check_same_device(embeddings=embeddings, **given)
        return ConfidenceSets(self.beta, self.threshold, **given)


class ConfidenceCounts(NamedTuple):
    """Results of one pass over the confidences."""

    positive: Tensor  # () int64: anchors with a candidate above the threshold
    negative: Tensor  # () int64: anchors with a candidate at or below it
    lowest: Tensor  # (): smallest confidence, NaN if there is one
    highest: Tensor  # ()


def count_confidences(
    sets: ConfidenceSets, num_classes: int, present: Tensor | None, dtype: torch.dtype
) -> ConfidenceCounts:
    """Anchors with a candidate on either side of the threshold, counting candidates ``present`` (B,) (None: all)."""
    B, device = len(sets.tensors[0]), sets.tensors[0].device
    if num_classes == 0:
        none, number = (
            torch.full((), torch.inf, dtype=dtype, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )
        return ConfidenceCounts(number, number.clone(), none, -none)
    lowest = torch.full((num_classes,), torch.inf, dtype=dtype, device=device)
    highest = -lowest
    if present is None and sets.extremes(lowest, highest):
        return _counts(sets, lowest, highest, present)
    rows = chunk_rows(num_classes, B + sets.per_class, device, 0 if present is None else 2 * B)
    # One memory for the logits of all chunks: the allocator would keep several.
    logits = torch.empty(min(rows, num_classes), B, dtype=dtype, device=device) if sets.are_logits else None
    for first in range(0, num_classes if B else 0, rows):
        last = min(num_classes, first + rows)
        with without_autocast(device):
            values = sets.values(first, last, dtype, None if logits is None else logits[: last - first])
        low, high = values, values
        if present is not None:
            low, high = values.masked_fill(~present, torch.inf), values.masked_fill(~present, -torch.inf)
        # Two passes of the vectorised reductions take a quarter of the time of torch.aminmax.
        torch.amin(low, 1, out=lowest[first:last])
        torch.amax(high, 1, out=highest[first:last])
    return _counts(sets, lowest, highest, present)


def _counts(sets: ConfidenceSets, lowest: Tensor, highest: Tensor, present: Tensor | None) -> ConfidenceCounts:
    """The counts by the smallest and the largest confidence, or logit, of each anchor."""
    if sets.are_logits:
        lowest, highest = lowest.sigmoid(), highest.sigmoid()
    positive, negative = highest > sets.threshold, lowest <= sets.threshold
    if present is not None:
        # A logit of ±inf from an absent candidate has become a confidence of 0 or 1.
        positive, negative = positive & present.any(), negative & present.any()
    return ConfidenceCounts(positive.sum(), negative.sum(), lowest.min(), highest.max())
