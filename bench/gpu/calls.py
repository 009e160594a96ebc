"""Every public loss and op at a real size against float64; ``python -m bench.gpu.calls BACKEND DEVICE``: once each."""

import os
import sys
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from robustdml_ops.backends.dispatch import UNAVAILABLE
from robustdml_ops.ops import LabelSets
from tests import every_call

from ..shapes import Shape
from .contenders import TYPES
from .results import FAILED, OK, Missing

SIZES = (Shape(96, 24, 128), Shape(33, 65, 515))
# Largest relative error, by the Euclidean norm, of each value and gradient. Exponents multiply roundings by 32; where
# one moves a pair across the margin of a hinge, its gradient appears or is gone.
BARS = {"amp": 8e-2, "bfloat16": 8e-2, "float32": 1e-4}


def moved(value: Any, device: str, matrices: torch.dtype, vectors: torch.dtype = torch.float32) -> Any:
    """Inputs on a device; vectors are weights and settings, which have the type of the computation."""
    if isinstance(value, LabelSets):
        return LabelSets.of(value.labels.to(device))
    if isinstance(value, Tensor):
        return value.to(device, (matrices if value.dim() > 1 else vectors) if value.is_floating_point() else None)
    return (
        type(value)(*(moved(each, device, matrices, vectors) for each in value)) if isinstance(value, tuple) else value
    )


def results(name: str, shape: Shape, dtype: str, device: str, exact: bool = False) -> list[Tensor]:
    """Values of a call, and gradients of their sum; ``exact``: of the same numbers in float64 on the CPU."""
    torch.manual_seed(0)
    with mock.patch.multiple(every_call, B=shape.B, C=shape.C, D=shape.D):
        call = every_call.EVERY[name]
        function, inputs = call.make(), call.inputs()
    if module := isinstance(function, nn.Module):
        function.to(device, TYPES[dtype])
    inputs = {key: moved(value, device, TYPES[dtype]) for key, value in inputs.items()}
    if exact:  # there tests hold it against the papers
        function = function.cpu().double() if module else function
        inputs = {key: moved(value, "cpu", torch.float64, torch.float64) for key, value in inputs.items()}
    leaves = [inputs[key].requires_grad_() for key in call.differentiable]
    leaves += [*function.parameters()] if module else []
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "amp" and not exact):
        found = tree_leaves(function(**inputs, **call.settings))
    values = [value for value in found if isinstance(value, Tensor) and value.is_floating_point()]
    total = sum(value.double().sum() for value in values if value.requires_grad)
    gradients = torch.autograd.grad(total, leaves, allow_unused=True) if leaves else ()
    return [value.detach() for value in (*values, *gradients) if value is not None]


def against_float64(name: str, shape: Shape, dtype: str, device: str, backend: str) -> dict[str, Any]:
    """Relative errors of values and gradients, and whether a second run has the same bits."""
    if reason := UNAVAILABLE[backend](torch.device(device), torch.float32):
        raise Missing(reason)
    with mock.patch.dict(os.environ, ROBUSTDML_BACKEND=backend):
        mine, again = (results(name, shape, dtype, device) for _ in "12")
    with mock.patch.dict(os.environ, ROBUSTDML_BACKEND="eager"):
        pairs = list(zip(mine, results(name, shape, dtype, device, exact=True), strict=True))
    errors = [float((one.cpu() - other).norm() / other.norm().clamp(min=1e-6)) for one, other in pairs]
    fits = all(error <= BARS[dtype] for error in errors)  # a comparison with NaN is false
    same = "" if all(map(torch.equal, mine, again)) else "a second run has other bits; "
    return {"status": OK if fits and not same else FAILED, "reason": f"{same}errors {errors}", "errors": errors}


if __name__ == "__main__":
    os.environ["ROBUSTDML_BACKEND"] = sys.argv[1]
    for each in every_call.EVERY:
        print(f"call {each}", flush=True)
        results(each, Shape(33, 65, 40), "bfloat16", sys.argv[2])
        results(each, Shape(33, 65, 40), "float32", sys.argv[2])[0].cpu()
