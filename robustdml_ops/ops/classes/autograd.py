"""The class log-sum-exp as an autograd function with second derivatives, and both ops that graphs call for it."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import SweepFunction, choose, has_no_values, refuse_vmap, registered_op
from robustdml_ops.engine.labels import LabelSets, check_label_range
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.rows.backends import gradient_buffer
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Derivative, Results
from robustdml_ops.engine.similarity_chunks import cache_rows, count_selected
from robustdml_ops.engine.validation import all_finite, check_finite_embeddings, require
from robustdml_ops.ops.classes.backends import BACKENDS
from robustdml_ops.ops.classes.sweep import (
    ClassBackend,
    ClassProblem,
    Request,
    Saved,
    class_sweep,
    class_sweep_backward,
)


class ClassSettings(NamedTuple):
    """The numbers and names among the arguments; the first six as in :class:`ClassProblem`."""

    centers: int
    target_bias: float
    pooling: str
    gamma: float
    exclude_target: bool
    normalize: bool
    elsewhere: bool
    differentiable: bool
    backend: str
    operand: torch.dtype  # of what the products multiply


class ClassSweep(SweepFunction):
    """Log-sum-exps, logits of the labels and, outside of graphs, what backward takes of the sweep."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        """Arguments: those of :func:`sweep_values`, settings, whether one number bounds logits, an update or None."""
        *arguments, bounded, update = arguments  # type: ignore[assignment]
        if has_no_values(arguments[0]):
            results: tuple[Tensor, Tensor] = class_sweep_op(*arguments)
            return results
        settings, (X, P) = ClassSettings(*arguments[8:]), arguments[:2]
        request = Request((X.requires_grad, P.requires_grad), settings.differentiable, bounded)
        lse, target, saved = _checked_sweep(arguments[:8], settings, request, None if update is None else update.rows)
        return (lse, target, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs and all results."""
        ctx.save_for_backward(*inputs[:8], *output)
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)  # else backward is given zeros (C, B) for the saved terms
        *settings, _, ctx.update = inputs[8:]
        ctx.settings = ClassSettings(*settings)
        ctx.version = None if ctx.update is None else ctx.update.version()

    @staticmethod
    def backward(ctx: Any, dlse: Tensor | None, dtarget: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Sweep again, with the upstream gradients of the first two results."""
        if dlse is None and dtarget is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_vmap(dlse, dtarget)
        if ctx.update is not None:
            ctx.update.check_version(ctx.version)
            if torch.is_grad_enabled():
                refuse_update(
                    ctx.update, "create_graph=True", "take it from a copy of the loss, which no optimiser is bound to"
                )
        X, P, *rest = ctx.saved_tensors
        constants, results, saved = rest[:6], rest[6:8], tuple(rest[8:])
        want = ctx.needs_input_grad[:2]
        first = partial(_first, ctx.settings, want, ctx.update if want[1] else None)
        upstream = (
            torch.zeros_like(value) if given is None else given.contiguous()
            for given, value in zip((dlse, dtarget), results, strict=True)
        )
        tensors = (X, P, *results, *upstream, *constants)
        if torch.is_grad_enabled() and not has_no_values(X):
            second = partial(_second, ctx.settings)
            gradients = Derivative.apply(first, second, 4, *tensors)  # type: ignore[no-untyped-call]
        else:
            gradients = first(*tensors, saved=saved)
        return (*gradients, *(None,) * (8 + len(ctx.settings)))


def sweep_values(
    arguments: Sequence[Any], settings: ClassSettings, selected: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sweep over detached inputs, or over the ``selected`` rows of the proxies; values and results checked.

    Arguments: embeddings (B, D), proxies (C·H, D), labels (B,) or (B, K), on the CPU sorted ones and their order,
    scale () or (C,), bias (C,) or None, limits (B,) or None.
    """
    return _checked_sweep(arguments, settings, Request(graded=settings.differentiable), selected)[:2]


def _checked_sweep(
    arguments: Sequence[Any], settings: ClassSettings, request: Request, selected: Tensor | None
) -> tuple[Tensor, Tensor, Saved]:
    """The same, with what it saves for backward."""
    embeddings, rows, labels, _, _, scale, bias, _ = arguments
    check_finite_embeddings(embeddings)
    if not settings.elsewhere:
        check_label_range(labels, count_selected(rows, selected) // settings.centers)
    if scale.device.type == "cpu":
        if not all_finite(scale):
            raise ValueError(f"scale[{_place(~torch.isfinite(scale))}] is NaN or inf")
        if bias is not None:
            require((bias < torch.inf).all(), lambda: f"bias[{_place(~(bias < torch.inf))}] is NaN or inf")
    backend, problem = _backend(settings, embeddings, scale), _problem(arguments[2:], settings)
    lse, target, saved = class_sweep(embeddings, rows, problem, backend, settings.operand, request, selected)
    if lse.device.type == "cpu":
        require((lse < torch.inf).all(), lambda: f"lse[{_place(~(lse < torch.inf))}] is NaN or inf: {_cause(rows)}")
    return lse, target, saved


def _cause(rows: Tensor) -> str:
    """Why log-sum-exps are not finite, for an error message."""
    bad = ~torch.isfinite(rows).all(1)
    if bad.any():
        return f"row {_place(bad)} of the proxies has NaN or inf"
    return "a logit overflows, or the length of a proxy does: lower scale, bias or the proxies"


def _place(bad: Tensor) -> int | str:
    """Index of the first bad value."""
    places = bad.reshape(-1).nonzero()
    return int(places[0]) if len(places) else "none"


def _backend(settings: ClassSettings, embeddings: Tensor, scale: Tensor) -> ClassBackend:
    """The chosen backend."""
    return choose(BACKENDS, settings.backend, embeddings.device, scale.dtype)


def _problem(constants: Sequence[Any], settings: ClassSettings) -> ClassProblem:
    """The checked arguments as a sweep takes them."""
    labels, sorted_labels, order, scale, bias, limits = constants
    sets = LabelSets(labels, sorted_labels, order, settings.elsewhere)
    return ClassProblem(sets, scale, bias, *settings[:6], limits)


def _first(
    settings: ClassSettings,
    want: Sequence[bool],
    update: ProxyUpdate | None,
    *tensors: Any,
    saved: Saved = (),
) -> Results:
    """Gradients of Σ_x dlse_x · lse_x + dtarget_x · target_x, in the types of embeddings and proxies."""
    if has_no_values(tensors[0]):
        dX, dP = class_gradient_op(*tensors, *settings, list(want))
    else:
        dX, dP = _sweep_gradients(settings, want, update, *tensors, saved=saved)
    return (dX.to(tensors[0].dtype) if want[0] else None, dP if want[1] else None)


def _sweep_gradients(
    settings: ClassSettings,
    want: Sequence[bool],
    update: ProxyUpdate | None,
    *tensors: Any,
    saved: Saved = (),
) -> tuple[Any, Tensor | None]:
    """Both gradients, that of the embeddings in the compute type; an update takes that of the proxies."""
    X, P, lse, target, dlse, dtarget, *constants = tensors
    problem = _problem(constants, settings)
    backend = _backend(settings, X, problem.scale)
    factor = None if update is None else update.scaler_factor
    if update is not None:
        if X.device.type == "cpu" and not (all_finite(dlse) and all_finite(dtarget)):
            if factor is None:
                raise ValueError("the upstream gradient of the loss has NaN or inf: no proxy has been updated")
            update.skip()
            return torch.full_like(X, torch.nan, dtype=dlse.dtype), None
        if factor is not None:  # of the gradients of the embeddings, and not of the step
            dlse, dtarget = dlse / factor, dtarget / factor
        update.begin(P)
    gradients = class_sweep_backward(
        X, P, problem, (lse, target), (dlse, dtarget), backend, settings.operand, (want[0], want[1]), update, saved
    )
    if update is not None:
        update.finish()
        update.confirm()
    if factor is not None and gradients[0] is not None:
        gradients = (gradients[0] * factor, gradients[1])
    return gradients


def _second(settings: ClassSettings, *tensors: Any) -> Results:
    """Second derivatives, see :func:`second_derivative`."""
    X, P, lse, _, dlse, dtarget, *constants, vX, vP = tensors
    return second_derivative(_problem(constants, settings), X, P, lse, dlse, dtarget, vX, vP)


def second_derivative(problem: ClassProblem, *tensors: Any) -> Results:
    """Derivatives of ⟨gradients of both matrices, vectors⟩ with respect to matrices and upstream gradients.

    Let l be the logits, p = e^(l − lse), and l' their derivative along the vectors. Then lse' = Σ_k p l', which takes a
    first pass over the classes, and the derivative is that of Σ_k c l' + dlse p (l' − lse') l with c = dlse p +
    dtarget at the labels, where all factors of l and l' are constants.
    """
    X, P, lse, dlse, dtarget, vX, vP = tensors
    vectors = tuple(torch.zeros_like(t) if v is None else v for t, v in ((X, vX), (P, vP)))
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    along_lse, along_target = torch.zeros_like(lse), torch.zeros_like(dtarget)
    for _, _, _, along, p, (index, inside) in _chunks(problem, X, P, lse, vectors):
        along_lse += (p * along).sum(0)
        along_target += (along.gather(0, index) * inside).t().view_as(dtarget)
    of_labels = dtarget.view(len(X), -1).t()
    dX, dP = torch.zeros_like(X), gradient_buffer(P)
    with torch.enable_grad():
        for rows, leaves, value, along, p, (index, inside) in _chunks(problem, X, P, lse, vectors):
            of_along = (dlse * p).detach().scatter_add(0, index, of_labels * inside)
            of_value = (dlse * p * (along - along_lse)).detach()
            dX_part, dP[rows] = torch.autograd.grad((of_along * along + of_value * value).sum(), leaves)
            dX += dX_part
    return dX, dP, None, None, along_lse, along_target


def _chunks(problem: ClassProblem, X: Tensor, P: Tensor, lse: Tensor, vectors: Sequence[Tensor]) -> Iterator[Any]:
    """Of chunks of whole classes: rows, leaves, logits (c, B), derivative along ``vectors``, p, labels' places."""
    H = problem.centers
    classes = max(1, cache_rows(len(X) + 2 * X.shape[1], X.device) // H)
    for first in range(0, len(P) // H, classes):
        last = min(len(P) // H, first + classes)
        rows = slice(first * H, last * H)
        leaves = X.detach().requires_grad_(), P[rows].detach().requires_grad_()
        logits = partial(_logits, problem, first, last)
        value, along, (counted, places) = torch.func.jvp(logits, leaves, (vectors[0], vectors[1][rows]), has_aux=True)  # type: ignore[misc]
        yield rows, leaves, value, along, ((value - lse).exp() * counted), places


def _logits(problem: ClassProblem, first: int, last: int, X: Tensor, P: Tensor) -> tuple[Tensor, Any]:
    """Logits (c, B) of the classes ``first:last`` in differentiable PyTorch; which count, 1 or 0; labels' places."""
    dtype = problem.scale.dtype
    V = P.to(dtype)
    S = ((unit_rows_twice(V) if problem.normalize else V) @ unit_rows_twice(X.to(dtype)).t()).view(
        last - first, problem.centers, -1
    )
    pooled = (torch.softmax(S / problem.gamma, 1) * S).sum(1) if problem.pooling == "softmax" else S.amax(1)
    scale = problem.scale if problem.scale.dim() == 0 else problem.scale[first:last, None]
    index, inside = problem.places(first, last)
    at_label = torch.zeros_like(pooled).scatter_add(0, index, inside.to(dtype))
    bias = 0 if problem.bias is None else problem.bias[first:last, None]
    counted = torch.ones_like(pooled)
    if problem.drop_similar_negatives is not None:
        counted = torch.maximum(1 - (pooled > problem.drop_similar_negatives).to(dtype), at_label)
    counted = counted * (1 - at_label) if problem.exclude_target else counted
    return pooled * scale + bias + problem.target_bias * at_label, (counted, (index, inside.to(dtype)))


_CONSTANTS_AND_SETTINGS = (
    "Tensor labels, Tensor? sorted_labels, Tensor? order, Tensor scale, Tensor? bias, Tensor? drop_similar_negatives, "
    "SymInt centers, float target_bias, str pooling, float gamma, bool exclude_target, bool normalize, bool elsewhere, "
    "bool differentiable, str backend, ScalarType operand"
)


@registered_op(
    "robustdml_ops::class_sweep",
    f"(Tensor embeddings, Tensor proxies, {_CONSTANTS_AND_SETTINGS}) -> (Tensor, Tensor)",
)
def class_sweep_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    """See :func:`robustdml_ops.ops.class_lse`; the proxies are (C·H, D)."""
    return sweep_values(arguments[:8], ClassSettings(*arguments[8:]))


@class_sweep_op.register_fake
def _(embeddings: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    labels, scale = rest[1], rest[4]
    return scale.new_empty(embeddings.shape[0]), scale.new_empty(labels.shape)


@registered_op(
    "robustdml_ops::class_gradient",
    "(Tensor embeddings, Tensor proxies, Tensor lse, Tensor target, Tensor dlse, Tensor dtarget, "
    f"{_CONSTANTS_AND_SETTINGS}, bool[] want) -> (Tensor, Tensor)",
)
def class_gradient_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Both gradients, that of the embeddings in the compute type; empty where they are not wanted."""
    tensors, scale = arguments[:12], arguments[9]
    dX, dP = _sweep_gradients(ClassSettings(*arguments[12:-1]), arguments[-1], None, *tensors)
    return scale.new_empty(0) if dX is None else dX, scale.new_empty(0) if dP is None else dP


@class_gradient_op.register_fake
def _(embeddings: Tensor, proxies: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    scale, want = rest[7], rest[-1]
    return (
        scale.new_empty(embeddings.shape if want[0] else 0),
        gradient_buffer(proxies) if want[1] else scale.new_empty(0),
    )
