"""Checks of both sums of pairs, and the call of their autograd function."""

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import apply_function, in_eager_mode, operand_dtype
from robustdml_ops.engine.labels import check_labels
from robustdml_ops.engine.validation import check_matrix, check_same_device, check_tensor, largest_weight
from robustdml_ops.ops.pairs.autograd import PairConstants, PairSweep, pair_dtype
from robustdml_ops.ops.pairs.problem import PairProblem, PairSets


def check_pairs(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None,
    candidate_labels: Tensor | None,
    anchors_first: bool = False,
) -> PairSets:
    """The sets of checked arguments; values are checked in the sweep."""
    check_matrix("embeddings", embeddings)
    # Asked before labels of another type or device become new tensors.
    same = candidate_labels is labels
    labels = check_labels(labels, embeddings)
    if candidates is None:
        if candidate_labels is not None:
            raise ValueError("candidate_labels without candidates: give both, or neither, for the batch itself")
        if anchors_first:
            raise ValueError("anchors_first without candidates, which are the anchors then: leave it out")
        return PairSets.of(labels, None)
    check_matrix("candidates", candidates, columns=embeddings.shape[1])
    check_same_device(embeddings=embeddings, candidates=candidates)
    candidate_labels = check_labels(candidate_labels, candidates, "candidate_labels", "candidates")
    if anchors_first and len(candidates) < len(embeddings):
        raise ValueError(
            f"anchors_first says that the first candidates are the {len(embeddings)} anchors, and there are "
            f"{len(candidates)} candidates"
        )
    return PairSets.of(labels, None if same else candidate_labels, anchors_first)


def check_scales(
    embeddings: Tensor, candidates: Tensor | None, positive_scale: Tensor, negative_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The scales of a weighted sum in the compute type, each () or (n,)."""
    for name, scale in (("positive_scale", positive_scale), ("negative_scale", negative_scale)):
        check_tensor(name, scale)
        if scale.shape not in ((), (len(embeddings),)):
            raise ValueError(f"{name} must have shape () or ({len(embeddings)},), got {tuple(scale.shape)}")
        if scale.is_complex():
            raise ValueError(f"{name} must be real numbers, got {scale.dtype}: pass {name}.real")
        if scale.requires_grad:
            raise ValueError(f"{name} is a constant of this op: pass {name}.detach()")
    check_same_device(embeddings=embeddings, positive_scale=positive_scale, negative_scale=negative_scale)
    dtype = pair_dtype(embeddings, candidates)
    scales = positive_scale.to(dtype), negative_scale.to(dtype)
    check_weights(positive_scale=scales[0], negative_scale=scales[1])
    return scales


def check_weights(**weights: Tensor) -> None:
    """No weight that is NaN or makes sums of pairs overflow; on the CPU, as other values, and in eager mode."""
    for name, values in weights.items():
        if values.device.type != "cpu" or not in_eager_mode(values):
            return
        largest = largest_weight(values.dtype)
        bounds = (values, values) if values.dim() == 0 else values.aminmax() if len(values) else ()
        if not all(-largest <= float(bound) <= largest for bound in bounds):
            fits = values.abs() <= largest
            raise ValueError(
                f"{name} must be finite and at most {largest:.2g} in {values.dtype}, got {values[~fits][:3].tolist()}"
            )


def pair_sums(
    embeddings: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    backend: str | None,
    scales: tuple[Tensor, Tensor] | None = None,
    coefficients: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The sum of all times ``scales`` (), in one sweep; without scales None, both sums (n,), counts (2, n)."""
    checked = (None, None) if scales is None else check_scales(embeddings, candidates, *scales)
    matrices = (embeddings, candidates, coefficients)
    graded = scales is not None and torch.is_grad_enabled()
    want = [graded and matrix is not None and matrix.requires_grad for matrix in matrices]
    parts = (problem,) if in_eager_mode(embeddings) else PairConstants.of(problem)
    both = (embeddings,) if candidates is None else (embeddings, candidates)
    operand = operand_dtype(pair_dtype(embeddings, candidates), *both, autocast=True)
    results: tuple[Tensor, ...] = apply_function(
        PairSweep, embeddings, candidates, *checked, coefficients, backend or "auto", operand, want, *parts
    )
    return results[:4]
