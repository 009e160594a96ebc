"""The plan of a softmax step: on the CPU one native call, from the embeddings to the loss and both gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import choose
from robustdml_ops.engine.plan import Plan, Results, native_weights_serve
from robustdml_ops.engine.rows.backends import gradient_buffer, reused_matrix
from robustdml_ops.engine.similarity_chunks import bytes_to_save
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.classes.backends import BACKENDS
from robustdml_ops.ops.classes.sweep import LARGEST_LOGIT


@dataclass(frozen=True)
class ClassFormula:
    """The loss log Σ_k e^{logit_k} − logit_y of a sample: logit_k = scale·s_k, logit_y = scale·f(s_y)."""

    scale: float
    margin: float = 0.0  # m of f, where the step brings no margins
    margin_kind: str = "cosine"  # f by its name in csrc/classes/cpu_step.h: "cosine", "angle" or "quality"
    margin_unit: float = 1.0  # of the margins that the step brings
    class_margins: bool = False  # whether these are of classes, (C,), and not of samples, (B,)
    exclude_target: bool = False  # whether the sum leaves the label out
    pooling: str = "none"  # of the similarities with the centres of a class
    gamma: float = 1.0


@dataclass(frozen=True)
class ClassPlan(Plan):
    """A step on the CPU by lanes. Tensors: embeddings, proxies, labels, and at places 5 and 6 weights and margins."""

    formula: ClassFormula
    columns: bool  # whether the proxies are (D, C·H)
    kept: int  # rows whose terms are kept from the sums to the gradient
    call: Callable[..., bool] = field(repr=False)
    native: Any = field(repr=False)
    general_loss: Callable[..., Tensor] = field(repr=False)

    def run(self, *tensors: Any) -> Results | None:
        """One native call; None for a label out of range, NaN, a weight below 0, or rows of extreme length."""
        X, P, labels, _, _, *vectors = tensors[:7]
        loss, dX, dP, E = X.new_empty(()), None, None, None
        if self.wanted[0]:
            dX = torch.empty_like(X)
        if self.wanted[1]:
            dP = gradient_buffer(P)
            E = reused_matrix(P, "terms", (self.kept, len(X)), X.dtype)
        weights, margins = (None if vector is None else vector.to(X.dtype).contiguous() for vector in vectors)
        memory = (X, P, labels, weights, margins, E, dX, dP, loss)
        places = [0 if tensor is None else tensor.data_ptr() for tensor in memory]
        return (loss, [dX, dP]) if self.call(self.native, *places) else None

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweeps that are differentiable twice."""
        return self.general_loss(*tensors)


def margins_serve(margins: Tensor | None, formula: ClassFormula, labels: Tensor, num_classes: int) -> bool:
    """Whether a planned step takes these margins: constants, one for each sample or class, beside the labels."""
    if margins is None:
        return True
    size = num_classes if formula.class_margins else len(labels)
    known = margins.is_floating_point() and margins.shape == (size,) and margins.device == labels.device
    return known and not margins.requires_grad


def class_plan(
    formula: ClassFormula,
    X: Any,
    P: Any,
    labels: Any,
    weights: Any,
    margins: Any,
    *,
    columns: bool,
    centers: int,
    backend: str | None,
    general: Callable[..., Tensor],
) -> Plan | None:
    """The plan of these tensors, P (C·H, D) or by ``columns`` (D, C·H); None where no native call reads them."""
    numbers = (formula.scale, formula.margin, formula.gamma)
    if not X.is_cpu or module.matrix_product(X.dtype) == 0 or not all(map(is_number, numbers)):
        return None
    if not 0 < abs(formula.scale) <= LARGEST_LOGIT or not native_weights_serve(weights, X) or P.dim() != 2:
        return None
    rows = P.t() if columns else P
    if X.dim() != 2 or labels.shape != X.shape[:1] or X.shape[1] != rows.shape[1] or not X.numel() or not P.numel():
        return None
    if not margins_serve(margins, formula, labels, len(rows) // centers):
        return None
    same = X.dtype == P.dtype and labels.dtype == torch.int64 and len(rows) % centers == 0
    if not same or not all(tensor.is_cpu and tensor.is_contiguous() for tensor in (X, P, labels)):
        return None
    chosen = choose(BACKENDS, backend, X.device, X.dtype)
    if torch.is_autocast_enabled("cpu") or not chosen.lanes_serve(rows, X.dtype, X.dtype):
        return None
    (B, D), count, threads, suffix = X.shape, len(rows), torch.get_num_threads(), module.SUFFIX[X.dtype]
    fitting = module.lane_rows(count, (B + 2 * D) * X.itemsize, threads)
    kept = min(count, bytes_to_save(X.device) // (B * X.itemsize))
    native = getattr(module.library, f"ClassStep_{suffix}")(
        gemm=module.matrix_product(X.dtype),
        set_threads=module.set_threads(),
        B=B,
        C=count // centers,
        H=centers,
        D=D,
        P_row_stride=rows.stride(0),
        P_column_stride=rows.stride(1),
        kept=kept,
        chunk_rows=min(count, max(1, fitting // centers) * centers),
        threads=threads,
        **vars(formula),
    )
    graded = torch.is_grad_enabled()
    wanted = (graded and X.requires_grad, graded and P.requires_grad)
    call = getattr(module.library, f"class_step_{suffix}")
    return ClassPlan(wanted, formula, columns, kept, call, native, general)
