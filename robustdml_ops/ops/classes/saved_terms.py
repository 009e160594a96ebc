"""Terms of the log-sum-exp that forward saves on a GPU, so that backward multiplies 6·B·C·D in all instead of 8.

    E_cx = exp(logit_cx) · scale / |p_c|        f_x = dlse_x · exp(−lse_x)
    dX = f ∘ (Eᵀ·P)                             dP = E·(f ∘ X), through the Jacobian of the normalisation

where |p| is 1 if unit rows are multiplied. E has no shift, because it is saved only where the logits are known to be
within ±64: E is then within e^±64 · scale / |p|. Backward writes the label's element: dlogit_x · scale / |p| / f_x.
"""

import math

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import compute_dtype, product_dtype
from robustdml_ops.engine.rows.backends import rows_at
from robustdml_ops.engine.rows.lengths import inverse_lengths
from robustdml_ops.engine.similarity_chunks import Similarities, bytes_to_save, count_selected
from robustdml_ops.ops.classes.problem import ClassBackend, ClassProblem, ClassUpstream

LARGEST_LOGIT = 64.0


def bounded(labels: Tensor, scale: float | Tensor, bias: Tensor | None, pooling: str, normalize: bool) -> bool:
    """Whether classes have one proxy, samples one label, and logits are within ±64; no tensor's values are read."""
    known = not isinstance(scale, Tensor) and abs(scale) <= LARGEST_LOGIT
    return known and bias is None and pooling == "none" and normalize and labels.dim() == 1


def largest_sum(classes: int) -> float:
    """The largest log-sum-exp of classes without the label, whose logit a margin may take anywhere."""
    return LARGEST_LOGIT + math.log(classes)


def terms_buffer(
    embeddings: Tensor, proxies: Tensor, operand: torch.dtype, backend: ClassBackend, selected: Tensor | None
) -> Tensor | None:
    """Memory for E (C, B), operand type, if the backend writes it and it fits into the device's budget."""
    shape = count_selected(proxies, selected), len(embeddings)
    operand = product_dtype(operand, compute_dtype(embeddings, proxies), embeddings.device)
    if not backend.saves_terms or math.prod(shape) * operand.itemsize > bytes_to_save(embeddings.device):
        return None
    return embeddings.new_empty(shape, dtype=operand)


def complete(
    similarities: Similarities, E: Tensor, problem: ClassProblem, upstream: ClassUpstream
) -> tuple[Tensor, Tensor]:
    """Write the labels' elements of E; returns f / |x| (B,), and f ∘ X (B, D), operand type, for X of length 1."""
    # Where dlse is nearly 0 beside dlogit, f is as large as the label's quotient needs: others get at most 2⁻²⁴ of it.
    least = 2.0**-24 * upstream.dlogit.abs() * upstream.lse.clamp(max=largest_sum(len(E))).neg().exp()
    f = upstream.dlse * upstream.lse.neg().exp()
    f = torch.where(f.abs() < least, least, f)
    here, place = problem.labels.labels >= 0, problem.labels.labels.clamp(min=0)
    own = upstream.dlogit / torch.where(f == 0, 1, f) * problem.scale
    proxies, selected = similarities.proxies, similarities.selected
    if similarities.as_they_are:
        own *= inverse_lengths(rows_at(proxies, place if selected is None else selected[place]).to(own.dtype))
    E.scatter_(0, place[None], torch.where(here, own.to(E.dtype), E.gather(0, place[None])))
    inverse_norm = similarities.X_inverse_norm
    unit = similarities.embeddings.to(f.dtype) * inverse_norm[:, None]
    return f * inverse_norm, unit.mul_(f[:, None]).to(E.dtype)
