"""The class log-sum-exp: logits, sums and saved terms, the interface of a backend, and both sweeps over the classes.

Where logits are within ±64, forward saves terms without a shift, as far as they fit, and backward has no product S:

    E_cx = exp(logit_cx) · scale / |p_c|        f_x = dlse_x · exp(−lse_x)
    dX = f ∘ (Eᵀ·P)                             dP = E·(f ∘ X), through the Jacobian of the normalisation

where |p| is 1 if unit rows are multiplied. 6·B·C·D flops in all instead of 8. By lanes the first sweep makes Eᵀ·P, too,
and what did not fit is made again (``csrc/classes/cpu_terms.h``); elsewhere backward takes both products, and writes
the label's element of E: dlogit_x · scale / |p| / f_x.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import without_autocast
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.op_arguments import op_options
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.rows.backends import RowsBackend, reused_matrix, rows_at
from robustdml_ops.engine.rows.lengths import inverse_lengths
from robustdml_ops.engine.similarity_chunks import (
    Chunk,
    Similarities,
    Swept,
    bytes_to_save,
    count_selected,
    gradients_without_samples,
)

LARGEST_LOGIT = 64.0
# Terms in half precision are smaller by this power of two, and the factors of the samples larger: of 10⁶ equal logits
# of 64 a factor is next to the smallest number, while the smallest term is far from it.
TERM_UNIT = 2.0**-24
# What a sweep leaves for backward: E, or by lanes those of LaneTerms, and the log-sum-exps in float64; or nothing.
Saved = tuple[Tensor, ...]


@op_options
@dataclass(frozen=True)
class ClassProblem:
    """What a sweep has beside both matrices: the logits scale_k·s'_xk + bias_k, and what is summed.

    s' pools the similarities with the H sub-centres of a class. Kernels have arguments of the same names, but for those
    in ``of_results``.
    """

    labels: LabelSets
    scale: Tensor  # () or (C,) compute dtype, contiguous
    bias: Tensor | None = None  # (C,) compute dtype, contiguous; −inf: the class is masked
    centers: int = 1  # H
    target_bias: float = 0.0  # added to the logit of the label
    pooling: str = "none"  # "none" (H = 1), "max" or "softmax"
    gamma: float = 1.0  # temperature of "softmax"
    exclude_target: bool = False  # whether the sum leaves the label out
    normalize: bool = True  # whether proxies are scaled to length 1
    drop_similar_negatives: Tensor | None = (
        None  # (B,) compute dtype, contiguous: other classes than the label's above it are out
    )

    logit_weights: Tensor | None = None  # (C,) compute dtype, contiguous, of a sum of the logits; None: no such sum

    of_results = ("labels", "target_bias", "exclude_target", "normalize")
    by_class = ("scale", "bias", "logit_weights")

    @classmethod
    def absent(cls) -> tuple[str, ...]:
        """Names of the tensors of kernels that a problem may lack."""
        return tuple(field.name for field in fields(cls) if field.default is None)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """(B,) or (B, K) logits of the labels; with ``logit_weights`` one more, their sum."""
        shape = self.labels.labels.shape
        return tuple(shape) if self.logit_weights is None else (shape[0], self.labels.labels_each + 1)

    def split(self, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of the labels, in the shape of these, and the weighted sum (B,) or None."""
        if self.logit_weights is None:
            return target, None
        return target[:, :-1].reshape(self.labels.labels.shape), target[:, -1]

    def classes(self, chunk: Chunk) -> tuple[int, int]:
        """The first class of a chunk, which holds whole classes, and the one after its last."""
        return chunk.first // self.centers, chunk.last // self.centers

    def is_bounded(self) -> bool:
        """Whether all logits are known to be within ±64, so that terms may be saved without a shift; reads values."""
        if not self.normalize or not self.scale.numel() or self.logit_weights is not None:
            return False
        largest = float(self.scale.abs().max())
        if self.bias is not None:
            largest += float(self.bias.masked_fill(self.bias == -torch.inf, 0).abs().max())
        return largest <= LARGEST_LOGIT

    def swept(self, proxies: Tensor, selected: Tensor | None) -> Swept:
        """The proxies, or their ``selected`` rows, as a sweep takes them."""
        return Swept(proxies, selected=selected, normalize=self.normalize, together=self.centers)

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        """The classes ``first:last`` as arguments of every backend's kernels; views keep the memory alive."""
        names = (name for name in self.option_names if name not in self.of_results)  # type: ignore[attr-defined]
        given = {name: getattr(self, name) for name in names}
        for name in self.by_class:
            if given[name] is not None and given[name].dim():
                given[name] = given[name][first:last]
        return {**given, "scale_stride": self.scale.dim(), "labels_each": self.labels.labels_each}

    def places(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Place of every label among the classes ``first:last``, (K, B), and whether it is one of these."""
        labels = self.labels.labels
        place = labels.reshape(len(labels), self.labels.labels_each).t() - first
        return place.clamp(0, last - first - 1), (place >= 0) & (place < last - first)


@dataclass
class ClassSums:
    """Sums of the forward sweep: Σ exp(logit) over the classes that count but the labels', and the labels' logits."""

    shift: Tensor  # (B,) float64 in/out: largest logit so far; −inf: none yet
    total: Tensor  # (B,) float64 in/out: Σ exp(logit − shift) so far
    target: Tensor  # (B,) or (B, K) compute dtype out: scale·s' + bias of the labels, once their chunks have passed
    weighted: Tensor | None = None  # (B,) float64 in/out: Σ logit_weights · logit over the classes but the labels'
    # All three or none, over the classes that count but the labels':
    own: Tensor | None = None  # (B,) compute dtype in: s' of the label
    nearest: Tensor | None = None  # (B,) compute dtype in/out: largest s' so far
    above: Tensor | None = None  # (B,) float64 in/out: classes so far with s' above ``own``

    def see(self, similarities: Tensor, counted: Tensor) -> None:
        """Add similarities (c, B) to ``nearest`` and ``above`` where they are ``counted``."""
        if self.own is not None and self.nearest is not None and self.above is not None:
            similarities = similarities.masked_fill(~counted, -torch.inf)
            torch.maximum(self.nearest, similarities.amax(0), out=self.nearest)
            self.above.add_((similarities > self.own).sum(0))


class ClassSeen(NamedTuple):
    """What a sweep is asked to tell of each sample beside its sums, as fields of :class:`ClassSums`."""

    own: Tensor
    nearest: Tensor
    above: Tensor

    @classmethod
    def of(cls, own: Tensor) -> "ClassSeen":
        """Memory for samples whose similarities with their own class are ``own`` (B,), compute dtype."""
        return cls(own.contiguous(), torch.full_like(own, -torch.inf), torch.zeros_like(own, dtype=torch.float64))


@dataclass(frozen=True)
class ClassUpstream:
    """Inputs of the backward sweep for each sample, (B,) in the compute dtype, contiguous."""

    lse: Tensor  # +inf where the sum is empty: exp(logit − lse) is 0 there
    dlse: Tensor  # dL/dlse
    dlogit: Tensor  # (B,) or (B, K): dL/dlogit of the labels, by way of lse and of target
    dweighted: Tensor | None = None  # (B,): dL/d(sum of the logits by logit_weights)


class ClassBackend(RowsBackend):
    """Epilogues of the class log-sum-exp on one backend, and its sweeps: a loop over chunks, if it has no better."""

    saves_terms = True  # whether class_lse() writes chunk.dS

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        """Add the classes of ``chunk`` to ``sums``; their terms in ``chunk.dS``, if it has one.

        A term is exp(logit) · scale · chunk.scale · term_unit.
        """
        raise NotImplementedError

    def complete_terms(
        self, similarities: Similarities, E: Tensor, problem: ClassProblem, upstream: ClassUpstream
    ) -> tuple[Tensor, Tensor]:
        """Complete the terms that class_lse() wrote, see :func:`complete`."""
        raise NotImplementedError

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        """dL/dS in ``chunk.dS``, or in S where there is none."""
        raise NotImplementedError

    def sweep(self, similarities: Similarities, problem: ClassProblem, sums: ClassSums, request: "Request") -> Saved:
        """Add all classes to ``sums``; returns the tensors saved for backward."""
        if request.bounded and any(request.want) and self.saves_terms:
            similarities.E = terms_buffer(similarities)
        for chunk in similarities:
            self.class_lse(chunk, problem, sums)
        return () if similarities.E is None else (similarities.E,)

    def sweep_backward(
        self, similarities: Similarities, problem: ClassProblem, gradient: ClassUpstream, saved: Saved
    ) -> None:
        """Leave the gradients that ``similarities`` has room for there."""
        if saved:
            # By way of .data: autograd would refuse a second backward, which writes the labels' elements anew.
            similarities.E = E = saved[0].data
            similarities.X_inverse_norm, similarities.weighted = self.complete_terms(similarities, E, problem, gradient)
        for chunk in similarities:
            if not saved:
                self.class_lse_backward(chunk, problem, gradient)
            similarities.backward(chunk)


@dataclass(frozen=True)
class Request:
    """What a sweep for the value is asked to leave for backward."""

    want: tuple[bool, bool] = (False, False)  # gradients of embeddings and proxies that may be asked for
    graded: bool = False  # whether any may be, be it by another sweep
    bounded: bool = False  # whether one number tells that logits are within ±64: see bounded()


class LaneTerms(NamedTuple):
    """What a sweep by lanes leaves for backward, see ``csrc/classes/cpu_terms.h``; what is not wanted has no rows."""

    E: Tensor  # (kept, B): terms of the first rows, as many as fit
    inverse_norm: Tensor  # (C·H,) of the proxies
    label_slopes: Tensor  # (B·K, H)
    label_rows: Tensor  # (B·K, D)
    G: Tensor  # (B, D)

    @classmethod
    def room(cls, similarities: Similarities, problem: ClassProblem, request: Request) -> "LaneTerms":
        """Memory for the wanted gradients."""
        X, (embeddings, proxies) = similarities.X, request.want
        (B, D), H, entries = X.shape, problem.centers, problem.labels.labels.numel()
        kept = min(similarities.count, bytes_to_save(X.device) // (B * X.itemsize)) if proxies else 0
        E = reused_matrix(similarities.proxies, "terms", (kept, B), X.dtype)
        inverse_norm = X.new_empty(similarities.count if proxies else 0)
        slopes = X.new_empty((entries if embeddings or proxies else 0, H))
        return cls(E, inverse_norm, slopes, X.new_empty((entries if embeddings else 0, D)), X.new_empty(0))

    def native_fields(self) -> dict[str, Any]:
        """The memory as the native module takes it."""
        fields = self._asdict()
        del fields["G"]
        return {**{name: tensor if tensor.numel() else None for name, tensor in fields.items()}, "kept": len(self.E)}


def bounded(labels: Tensor, scale: float | Tensor, bias: Tensor | None, pooling: str, normalize: bool) -> bool:
    """Whether classes have one proxy, samples one label, and logits are within ±64; no tensor's values are read."""
    known = not isinstance(scale, Tensor) and abs(scale) <= LARGEST_LOGIT
    return known and bias is None and pooling == "none" and normalize and labels.dim() == 1


def largest_sum(classes: int) -> float:
    """The largest log-sum-exp of classes without the label, whose logit a margin may take anywhere."""
    return LARGEST_LOGIT + math.log(classes)


def term_unit(dtype: torch.dtype) -> float:
    """What kept terms of a type are multiplied by. In full precision a factor times 1 / |x| stays in range without."""
    return TERM_UNIT if dtype.itemsize < 4 else 1.0


def terms_buffer(similarities: Similarities) -> Tensor | None:
    """Memory for E (C, B), operand type, if it fits into the device's budget."""
    X, shape = similarities.X, (similarities.count, len(similarities.X))
    if math.prod(shape) * X.itemsize > bytes_to_save(X.device):
        return None
    return X.new_empty(shape)


def complete(
    similarities: Similarities, E: Tensor, problem: ClassProblem, upstream: ClassUpstream
) -> tuple[Tensor, Tensor]:
    """Write the labels' elements of E; returns f / |x| (B,), and f ∘ X (B, D), operand type, for X of length 1.

    f = dL/dlse · exp(−lse) / term_unit.
    """
    # Where dlse is nearly 0 beside dlogit, f is as large as the label's quotient needs: others get at most 2⁻²⁴ of it.
    larger = 1 / term_unit(E.dtype)
    least = 2.0**-24 * larger * upstream.dlogit.abs() * upstream.lse.clamp(max=largest_sum(len(E))).neg().exp()
    f = upstream.dlse * larger * upstream.lse.neg().exp()
    f = torch.where(f.abs() < least, least, f)
    labels = problem.labels.labels
    here, place = (labels >= 0) & (labels < len(E)), labels.clamp(0, len(E) - 1)
    own = upstream.dlogit / torch.where(f == 0, 1, f) * problem.scale
    proxies, selected = similarities.proxies, similarities.selected
    if similarities.as_they_are:
        own *= inverse_lengths(rows_at(proxies, place if selected is None else selected[place]).to(own.dtype))
    E.scatter_(0, place[None], torch.where(here, own.to(E.dtype), E.gather(0, place[None])))
    inverse_norm = similarities.X_inverse_norm
    unit = similarities.embeddings.to(f.dtype) * inverse_norm[:, None]
    return f * inverse_norm, unit.mul_(f[:, None]).to(E.dtype)


def class_sweep(
    embeddings: Tensor,
    proxies: Tensor,
    problem: ClassProblem,
    backend: ClassBackend,
    operand: torch.dtype,
    request: Request,
    selected: Tensor | None = None,
    seen: ClassSeen | None = None,
) -> tuple[Tensor, Tensor, Saved]:
    """Log-sum-exp over the classes (B,), and a ``target_shape``; what backward may take, as ``request`` says.

    Fills ``seen``.
    """
    B, compute = len(embeddings), problem.scale.dtype
    labels = problem.labels.labels
    saved: Saved = ()
    shift = embeddings.new_full((B,), -torch.inf, dtype=torch.float64)
    weighted = None if problem.logit_weights is None else torch.zeros_like(shift)
    target = embeddings.new_zeros(labels.shape, dtype=compute)
    sums = ClassSums(shift, torch.zeros_like(shift), target, weighted, *(seen or ()))
    if B and count_selected(proxies, selected):
        with without_autocast(embeddings.device):
            similarities = Similarities(embeddings, problem.swept(proxies, selected), compute, operand, backend)
            saved = backend.sweep(similarities, problem, sums, request)
    target = sums.target + problem.target_bias
    if problem.labels.elsewhere:
        here = count_selected(proxies, selected) // problem.centers
        target = target.masked_fill((labels < 0) | (labels >= here), -torch.inf)
    lse = with_labels(sums, target, problem)
    if weighted is not None:
        target = torch.cat([target.view(B, problem.labels.labels_each), weighted.to(compute)[:, None]], 1)
    # A tensor of its own: autograd takes what is saved for results without a gradient.
    return lse.to(compute, copy=True), target, (*saved, lse) if saved else ()


def with_labels(sums: ClassSums, target: Tensor, problem: ClassProblem) -> Tensor:
    """Log-sum-exp (B,) float64 of the sums and of the labels, if these count; −inf where no class does."""
    lse = sums.shift + sums.total.log()
    if problem.exclude_target:
        return lse
    own = target.double()
    return torch.logaddexp(lse, own if own.dim() == 1 else own.logsumexp(1))


def class_sweep_backward(
    embeddings: Tensor,
    proxies: Tensor,
    problem: ClassProblem,
    results: tuple[Tensor, Tensor],
    upstream: tuple[Tensor, Tensor],
    backend: ClassBackend,
    operand: torch.dtype,
    want: tuple[bool, bool],
    update: ProxyUpdate | None = None,
    saved: Saved = (),
) -> tuple[Tensor | None, Tensor | None]:
    """dL/dembeddings, compute type, and dL/dproxies (C·H, D): 6·B·C·D flops, or 4, or 2 with what was ``saved``."""
    selected, compute = None if update is None else update.rows, problem.scale.dtype
    if len(embeddings) == 0 or count_selected(proxies, selected) == 0:
        return gradients_without_samples(embeddings, proxies, compute, want, update)
    (lse, target), (dlse, dtarget) = results, upstream
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    (target, _), (dtarget, dweighted) = problem.split(target), problem.split(dtarget)
    dlogit = dtarget
    if not problem.exclude_target:
        # The probability of a label may be 1 but for less than its logit's rounding.
        exact = saved[-1].masked_fill(lse == torch.inf, torch.inf) if saved and lse.device.type == "cpu" else lse
        of_sample = (dlse, exact) if target.dim() == 1 else (dlse[:, None], exact[:, None])
        dlogit = (dtarget + of_sample[0] * (target - of_sample[1]).exp()).to(compute)
    dweighted = None if dweighted is None else dweighted.contiguous()
    gradient = ClassUpstream(lse, dlse.contiguous(), dlogit.contiguous(), dweighted)
    with without_autocast(embeddings.device):
        similarities = Similarities(embeddings, problem.swept(proxies, selected), compute, operand, backend)
        similarities.want_gradients(*want, update)
        backend.sweep_backward(similarities, problem, gradient, saved)
        return similarities.gradients()
