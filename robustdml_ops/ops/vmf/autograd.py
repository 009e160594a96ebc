"""The von Mises–Fisher functions and the fit on a chosen backend, with autograd and the ops of compiled graphs."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import in_eager_mode, in_registry
from robustdml_ops.engine.autograd_functions import apply_function
from robustdml_ops.engine.older_torch import registered_op
from robustdml_ops.ops.vmf.eager import EagerVmf
from robustdml_ops.ops.vmf.native import NativeVmf
from robustdml_ops.ops.vmf.problem import FitProblem, Fitted, VmfBackend
from robustdml_ops.ops.vmf.triton import TritonVmf

BACKENDS: dict[str, VmfBackend] = {"native": NativeVmf(), "triton": TritonVmf(), "eager": EagerVmf()}


def evaluate(function: str, order: float, kappa: Tensor, backend: str | None) -> Tensor:
    """``function`` of ``order`` at ``kappa``, by a name in the table of ``problem.py``. Not differentiable."""
    if in_registry(kappa):
        return vmf_op(kappa, function, order, backend or "auto")  # type: ignore[no-any-return]
    return choose(BACKENDS, backend, kappa.device, kappa.dtype).evaluate_vmf(function, order, kappa)


def vmf(function: str, order: float, kappa: Tensor, backend: str | None) -> Tensor:
    """:func:`evaluate`, differentiable twice, and "ratio" once."""
    if not in_eager_mode(kappa) or (torch.is_grad_enabled() and kappa.requires_grad):
        value: Tensor = apply_function(Vmf, kappa, function, order, backend or "auto")
        return value
    return evaluate(function, order, kappa, backend)


class Vmf(torch.autograd.Function):
    """One function of κ, whose derivative is made of others."""

    @staticmethod
    def forward(kappa: Tensor, function: str, order: float, backend: str) -> Tensor:
        """The value."""
        return evaluate(function, order, kappa, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str, float, str], output: Tensor) -> None:
        """Keep κ."""
        kappa, *ctx.settings = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Upstream times the derivative, itself differentiable."""
        (kappa,) = ctx.saved_tensors
        function, order, backend = ctx.settings
        if function == "ratio_derivative":
            raise RuntimeError("the Bessel ratio can be differentiated once: detach kappa before asking for more")
        if function == "ratio":
            derivative = vmf("ratio_derivative", order, kappa, backend)
        else:
            derivative = vmf("ratio", order, kappa, backend)
            if function == "peak":
                derivative = 1 - derivative
            elif function == "log_i" and order > 0:
                derivative = derivative + order / kappa
        return upstream * derivative, None, None, None


@registered_op("robustdml_ops::vmf")
def vmf_op(kappa: Tensor, function: str, order: float, backend: str) -> Tensor:
    """:func:`evaluate` in compiled graphs."""
    return evaluate(function, order, kappa, backend)


@vmf_op.register_fake
def _(kappa: Tensor, function: str, order: float, backend: str) -> Tensor:
    return torch.empty_like(kappa, memory_format=torch.contiguous_format)


def fit(problem: FitProblem, backend: str | None) -> Fitted:
    """The distribution of every class. Not differentiable."""
    if in_registry(problem.sums):
        settings = (problem.dim, problem.estimator, problem.bias_correction, backend or "auto")
        return Fitted(*vmf_fit_op(problem.sums, problem.counts, problem.classes, *settings))
    return choose(BACKENDS, backend, problem.sums.device, problem.sums.dtype).fit(problem)


@registered_op("robustdml_ops::vmf_fit")
def vmf_fit_op(
    sums: Tensor,
    counts: Tensor,
    classes: Tensor | None,
    dim: int,
    estimator: str,
    bias_correction: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`fit` in compiled graphs."""
    kappa, log_peak, norm = fit(FitProblem(sums, counts, classes, dim, estimator, bias_correction), backend)
    # A registered op may not return two views of one buffer.
    return kappa.clone(), log_peak.clone(), norm


@vmf_fit_op.register_fake
def _(sums: Tensor, counts: Tensor, classes: Tensor | None, *settings: object) -> tuple[Tensor, Tensor, Tensor]:
    n = len(sums if classes is None else classes)
    return sums.new_empty(n), sums.new_empty(n), sums.new_empty(n, dtype=torch.float64)
