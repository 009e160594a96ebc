"""The von Mises–Fisher functions and the fit on a chosen backend, with autograd and the ops of compiled graphs."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.engine.autograd_functions import apply_function, op_in_graphs
from robustdml_ops.ops.vmf.backends import BACKENDS
from robustdml_ops.ops.vmf.problem import FitProblem, Fitted


def vmf(function: str, order: float, kappa: Tensor, backend: str | None) -> Tensor:
    """A function of the table of ``problem.py``, differentiable twice, and "ratio" once."""
    value: Tensor = apply_function(Vmf, kappa, function, order, backend or "auto")
    return value


class Vmf(torch.autograd.Function):
    """One function of κ, whose derivative is made of others."""

    @staticmethod
    @op_in_graphs("vmf")
    def forward(kappa: Tensor, function: str, order: float, backend: str) -> Tensor:
        return choose(BACKENDS, backend, kappa.device, kappa.dtype).evaluate_vmf(function, order, kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str, float, str], output: Tensor) -> None:
        kappa, *ctx.settings = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
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


@op_in_graphs("vmf_fit", lambda sums, _, classes, *__: Fitted.empty(sums, len(sums if classes is None else classes)))
def fit(
    sums: Tensor,
    counts: Tensor,
    classes: Tensor | None,
    dim: int,
    estimator: str,
    bias_correction: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The distribution of every class, as :class:`Fitted`. Not differentiable."""
    problem = FitProblem(sums, counts, classes, dim, estimator, bias_correction)
    return choose(BACKENDS, backend, sums.device, sums.dtype).fit(problem)
