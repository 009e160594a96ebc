"""(e) Every loss in every type against float64, and what else is promised of it on a GPU."""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...shapes import Shape
from .. import rows
from ..losses import CASES
from ..sheet import Absent, Sheet
from ..timing import Step, graphed

SHAPE = Shape(96, 300, 128)
# Largest relative error, by the Euclidean norm, of the value and of each gradient. bfloat16 has eight binary digits,
# and exponents multiply what was rounded by 32 and more.
BARS = {"float32": 1e-4, "bfloat16": 5e-2, "amp": 5e-2}
COMPILED_IN_A_DRY_RUN = ("ProxyAnchorLoss",)


@dataclass
class Trial:
    """A loss with its inputs on the device."""

    module: nn.Module
    argument: str
    leaf: Tensor
    given: dict[str, Any]

    @classmethod
    def of(cls, name: str, shape: Shape, device: torch.device, dtype: torch.dtype) -> "Trial":
        case = CASES[name]
        leaf, given = case.inputs(shape)
        torch.manual_seed(1)
        module = case.make(shape).to(device)

        def moved(value: Any) -> Any:
            return value.to(device, dtype if value.is_floating_point() else None)

        leaf = leaf.to(device, dtype).requires_grad_()
        return cls(module.to(dtype), case.argument, leaf, {key: moved(value) for key, value in given.items()})

    @property
    def leaves(self) -> list[Tensor]:
        return [self.leaf, *(parameter for parameter in self.module.parameters() if parameter.requires_grad)]

    def loss(self, function: Callable[..., Tensor] | None = None) -> Tensor:
        return (self.module if function is None else function)(**{self.argument: self.leaf}, **self.given)

    def results(self, function: Callable[..., Tensor] | None = None, amp: bool = False) -> list[Tensor]:
        """Value and gradients."""
        with torch.autocast(self.leaf.device.type, torch.bfloat16) if amp else nullcontext():
            value = self.loss(function)
        gradients = torch.autograd.grad(value, self.leaves, allow_unused=True)
        return [value.detach(), *(gradient for gradient in gradients if gradient is not None)]

    def exact(self) -> "Trial":
        """On the CPU in float64, of the inputs as they were rounded; there tests hold it against the papers."""
        cpu = {key: value.detach().cpu() for key, value in self.given.items()}
        cpu = {key: value.double() if value.is_floating_point() else value for key, value in cpu.items()}
        leaf = self.leaf.detach().cpu().double().requires_grad_()
        return Trial(copy.deepcopy(self.module).cpu().double(), self.argument, leaf, cpu)


def run(sheet: Sheet) -> None:
    for name in CASES:
        for dtype in BARS:
            sheet.row(name, partial(against_float64, sheet, name, dtype), SHAPE, step_down=False, dtype=dtype)
    promises = {"the same bits": same_bits, "another stream": another_stream, "no waiting": no_waiting}
    promises |= {"graph": captured, "compiled": compiled}
    for promise, check in promises.items():
        for name in CASES:
            if not (sheet.dry_run and promise == "compiled" and name not in COMPILED_IN_A_DRY_RUN):
                sheet.row(name, partial(check, sheet, name), SHAPE, step_down=False, variant=promise)


def _trial(sheet: Sheet, name: str, shape: Shape) -> Trial:
    return Trial.of(name, shape, sheet.device, torch.float32)


def _on_cuda(sheet: Sheet) -> None:
    if sheet.device.type != "cuda":
        raise Absent("no CUDA device")


def against_float64(sheet: Sheet, name: str, dtype: str, shape: Shape) -> Mapping[str, Any]:
    torch.set_float32_matmul_precision("highest")
    trial = Trial.of(name, shape, sheet.device, torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    errors = [
        float((mine.cpu().double() - exact).norm() / exact.norm().clamp(min=1e-30))
        for mine, exact in zip(trial.results(amp=dtype == "amp"), trial.exact().results(), strict=True)
    ]
    # A comparison with NaN is false.
    return _judged(all(error <= BARS[dtype] for error in errors), f"relative errors {errors}", errors=errors)


def same_bits(sheet: Sheet, name: str, shape: Shape) -> Mapping[str, Any]:
    trial = _trial(sheet, name, shape)
    first, second = trial.results(), trial.results()
    return _judged(_equal(first, second), "two runs differ")


def another_stream(sheet: Sheet, name: str, shape: Shape) -> Mapping[str, Any]:
    _on_cuda(sheet)
    trial = _trial(sheet, name, shape)
    first, side = trial.results(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        second = trial.results()
    torch.cuda.current_stream().wait_stream(side)
    return _judged(_equal(first, second), "another stream gives other results")


def no_waiting(sheet: Sheet, name: str, shape: Shape) -> Mapping[str, Any]:
    _on_cuda(sheet)
    trial = _trial(sheet, name, shape)
    trial.results()  # what is done once, compilation of kernels above all, may wait
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            trial.results()
        except RuntimeError as error:
            return {"status": rows.FAILED, "reason": str(error)[:300]}
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {}


def captured(sheet: Sheet, name: str, shape: Shape) -> Mapping[str, Any]:
    """Replayed over other embeddings the graph gives what eager mode does."""
    _on_cuda(sheet)
    trial = _trial(sheet, name, shape)
    replay = graphed(Step.of_loss(trial.loss, *trial.leaves))
    with torch.no_grad():
        trial.leaf.add_(0.1)
    replay.run()
    mine = [leaf.grad.clone() for leaf in trial.leaves if leaf.grad is not None]
    return _judged(_equal(mine, trial.results()[1:]), "the replayed graph gives other gradients")


def compiled(sheet: Sheet, name: str, shape: Shape) -> Mapping[str, Any]:
    torch._dynamo.reset()
    trial = _trial(sheet, name, shape)
    whole = torch.compile(trial.module, fullgraph=True, backend="aot_eager" if sheet.dry_run else "inductor")
    errors = [
        float((mine - theirs).norm() / theirs.norm().clamp(min=1e-30))
        for mine, theirs in zip(trial.results(whole), trial.results(), strict=True)
    ]
    return _judged(all(error <= BARS["float32"] for error in errors), f"relative errors {errors}", errors=errors)


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _judged(holds: bool, otherwise: str, **facts: Any) -> dict[str, Any]:
    return facts if holds else {"status": rows.FAILED, "reason": otherwise, **facts}
