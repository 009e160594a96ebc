"""The class log-sum-exp as an autograd function with second derivatives, and both ops that graphs call for it."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import SweepFunction, choose, has_no_values, refuse_vmap, registered_op
from robustdml_ops.engine.op_arguments import SCHEMA, unflatten
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.rows.backends import gradient_buffer
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Derivative, Results
from robustdml_ops.engine.similarity_chunks import cache_rows, count_selected
from robustdml_ops.engine.validation import all_finite, check_finite_embeddings, require
from robustdml_ops.ops.classes.backends import BACKENDS
from robustdml_ops.ops.classes.sweep import (
    ClassProblem,
    ClassSeen,
    Request,
    Saved,
    class_sweep,
    class_sweep_backward,
)


class ClassSweep(SweepFunction):
    """Log-sum-exps, logits of the labels and, outside of graphs, what backward takes of the sweep."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        """Both matrices, :class:`Settings`, whether one number bounds logits, update, what is seen, the problem.

        The update, and what is seen, are None where there is none.
        """
        X, P, *settings = arguments[: 2 + _SETTINGS]
        bounded, update, seen, names, numbers, *tensors = arguments[2 + _SETTINGS :]
        if has_no_values(X):
            results: tuple[Tensor, Tensor] = class_sweep_op(X, P, *settings, names, numbers, tensors)
            return results
        problem, of = unflatten(names, numbers, tensors), Settings(*settings)
        request = Request((X.requires_grad, P.requires_grad), of.differentiable, bounded)
        rows = None if update is None else update.rows
        lse, target, saved = _checked_sweep(X, P, problem, of, request, rows, seen)
        return (lse, target, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs and all results."""
        X, P, *settings = inputs[: 2 + _SETTINGS]
        _, ctx.update, _, *ctx.lists = inputs[2 + _SETTINGS : 7 + _SETTINGS]
        ctx.settings, ctx.saved = Settings(*settings), len(output) - 2
        ctx.save_for_backward(X, P, *output, *inputs[7 + _SETTINGS :])
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)  # else backward is given zeros (C, B) for the saved terms
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
        X, P, lse, target, *rest = ctx.saved_tensors
        saved, constants, results = tuple(rest[: ctx.saved]), rest[ctx.saved :], (lse, target)
        want = ctx.needs_input_grad[:2]
        first = partial(_first, ctx.settings, ctx.lists, want, ctx.update if want[1] else None)
        upstream = (
            torch.zeros_like(value) if given is None else given.contiguous()
            for given, value in zip((dlse, dtarget), results, strict=True)
        )
        tensors = (X, P, *results, *upstream, *constants)
        if torch.is_grad_enabled() and not has_no_values(X):
            second = partial(_second, ctx.lists)
            gradients = Derivative.apply(first, second, 4, *tensors)  # type: ignore[no-untyped-call]
        else:
            gradients = first(*tensors, saved=saved)
        return (*gradients, *(None,) * (len(ctx.needs_input_grad) - 2))


class Settings(NamedTuple):
    """How a sweep is computed."""

    differentiable: bool
    backend: str
    operand: torch.dtype  # of what the products multiply


_SETTINGS = len(Settings._fields)


def sweep_values(
    X: Tensor,
    P: Tensor,
    problem: ClassProblem,
    settings: Settings,
    selected: Tensor | None = None,
    seen: ClassSeen | None = None,
) -> tuple[Tensor, Tensor]:
    """The sweep over detached X (B, D) and P (C·H, D), or its ``selected`` rows; values and results checked."""
    return _checked_sweep(X, P, problem, settings, Request(graded=settings.differentiable), selected, seen)[:2]


def _checked_sweep(
    X: Tensor,
    P: Tensor,
    problem: ClassProblem,
    settings: Settings,
    request: Request,
    selected: Tensor | None,
    seen: ClassSeen | None,
) -> tuple[Tensor, Tensor, Saved]:
    """The same, and the tensors saved for backward."""
    check_finite_embeddings(X)
    problem.labels.check_range(count_selected(P, selected) // problem.centers)
    scale, bias = problem.scale, problem.bias
    if scale.device.type == "cpu":
        if not all_finite(scale):
            raise ValueError(f"scale[{_place(~torch.isfinite(scale))}] is NaN or inf")
        if bias is not None:
            require((bias < torch.inf).all(), lambda: f"bias[{_place(~(bias < torch.inf))}] is NaN or inf")
    backend = choose(BACKENDS, settings.backend, X.device, scale.dtype)
    lse, target, saved = class_sweep(X, P, problem, backend, settings.operand, request, selected, seen)
    if lse.device.type == "cpu":
        require((lse < torch.inf).all(), lambda: f"lse[{_place(~(lse < torch.inf))}] is NaN or inf: {_cause(P)}")
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


def _first(
    settings: Settings,
    lists: tuple[Any, Any],
    want: Sequence[bool],
    update: ProxyUpdate | None,
    *tensors: Any,
    saved: Saved = (),
) -> Results:
    """Gradients of Σ_x dlse_x · lse_x + dtarget_x · target_x, in the types of embeddings and proxies."""
    given, constants = tensors[:6], tensors[6:]
    if has_no_values(tensors[0]):
        dX, dP = class_gradient_op(*given, *settings, list(want), *lists, list(constants))
    else:
        dX, dP = _sweep_gradients(settings, want, update, unflatten(*lists, constants), *given, saved=saved)
    return (dX.to(tensors[0].dtype) if want[0] else None, dP if want[1] else None)


def _sweep_gradients(
    settings: Settings,
    want: Sequence[bool],
    update: ProxyUpdate | None,
    problem: ClassProblem,
    *tensors: Any,
    saved: Saved = (),
) -> tuple[Any, Tensor | None]:
    """Both gradients, that of the embeddings in the compute type; an update takes that of the proxies."""
    X, P, lse, target, dlse, dtarget = tensors
    backend = choose(BACKENDS, settings.backend, X.device, problem.scale.dtype)
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


def _second(lists: tuple[Any, Any], *tensors: Any) -> Results:
    """Second derivatives, see :func:`second_derivative`."""
    X, P, lse, _, dlse, dtarget, *constants, vX, vP = tensors
    return second_derivative(unflatten(*lists, constants), X, P, lse, dlse, dtarget, vX, vP)


def second_derivative(problem: ClassProblem, *tensors: Any) -> Results:
    """Derivatives of ⟨gradients of both matrices, vectors⟩ with respect to matrices and upstream gradients.

    Let l be the logits, p = e^(l − lse), and l' their derivative along the vectors. Then lse' = Σ_k p l', which takes a
    first pass over the classes, and the derivative is that of Σ_k c l' + dlse p (l' − lse') l with c = dlse p +
    dtarget at the labels, dweighted · logit_weights elsewhere, where all factors of l and l' are constants.
    """
    X, P, lse, dlse, upstream, vX, vP = tensors
    dtarget, dweighted = problem.split(upstream)
    vectors = tuple(torch.zeros_like(t) if v is None else v for t, v in ((X, vX), (P, vP)))
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    along_lse, along_upstream = torch.zeros_like(lse), torch.zeros_like(upstream)
    along_labels = along_upstream.view(len(X), -1)[:, : problem.labels.labels_each]
    for _, _, _, along, p, (index, inside, *weights) in _chunks(problem, X, P, lse, vectors):
        along_lse += (p * along).sum(0)
        along_labels += (along.gather(0, index) * inside).t()
        if weights:
            along_upstream[:, -1] += (weights[0] * along).sum(0)
    of_labels = dtarget.view(len(X), -1).t()
    dX, dP = torch.zeros_like(X), gradient_buffer(P)
    with torch.enable_grad():
        for rows, leaves, value, along, p, (index, inside, *weights) in _chunks(problem, X, P, lse, vectors):
            of_along = (dlse * p).detach().scatter_add(0, index, of_labels * inside)
            if dweighted is not None:
                of_along += dweighted * weights[0]
            of_value = (dlse * p * (along - along_lse)).detach()
            dX_part, dP[rows] = torch.autograd.grad((of_along * along + of_value * value).sum(), leaves)
            dX += dX_part
    return dX, dP, None, None, along_lse, along_upstream


def _chunks(problem: ClassProblem, X: Tensor, P: Tensor, lse: Tensor, vectors: Sequence[Tensor]) -> Iterator[Any]:
    """Of chunks of whole classes: rows, leaves, logits (c, B), derivative along ``vectors``, p; labels, weights."""
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
    """Logits (c, B) of the classes ``first:last`` in differentiable PyTorch; which count; labels' places, weights."""
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
    places: tuple[Tensor, ...] = (index, inside.to(dtype))
    if problem.logit_weights is not None:
        places = (*places, problem.logit_weights[first:last, None] * (1 - at_label))
    return pooled * scale + bias + problem.target_bias * at_label, (counted, places)


@registered_op(
    "robustdml_ops::class_sweep",
    "(Tensor embeddings, Tensor proxies, bool differentiable, str backend, ScalarType operand, "
    f"{SCHEMA}) -> (Tensor, Tensor)",
)
def class_sweep_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    """See :func:`robustdml_ops.ops.class_lse`; the proxies are (C·H, D)."""
    X, P, *settings, names, numbers, tensors = arguments
    return sweep_values(X, P, unflatten(names, numbers, tensors), Settings(*settings))


@class_sweep_op.register_fake
def _(embeddings: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    problem = unflatten(*rest[-3:])
    return problem.scale.new_empty(embeddings.shape[0]), problem.scale.new_empty(problem.target_shape)


@registered_op(
    "robustdml_ops::class_gradient",
    "(Tensor embeddings, Tensor proxies, Tensor lse, Tensor target, Tensor dlse, Tensor dtarget, bool differentiable, "
    f"str backend, ScalarType operand, bool[] want, {SCHEMA}) -> (Tensor, Tensor)",
)
def class_gradient_op(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Both gradients, that of the embeddings in the compute type; empty where they are not wanted."""
    given, (*settings, want, names, numbers, tensors) = arguments[:6], arguments[6:]
    problem = unflatten(names, numbers, tensors)
    dX, dP = _sweep_gradients(Settings(*settings), want, None, problem, *given)
    empty = problem.scale.new_empty
    return empty(0) if dX is None else dX, empty(0) if dP is None else dP


@class_gradient_op.register_fake
def _(embeddings: Tensor, proxies: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    new, (want, *_) = unflatten(*rest[-3:]).scale.new_empty, rest[-4:]
    return new(embeddings.shape if want[0] else 0), gradient_buffer(proxies) if want[1] else new(0)
