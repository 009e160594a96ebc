"""One training step of every loss, filter and optimiser, to be taken thousands of times; and what a process holds."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from robustdml_ops import losses, optim, robust
from tests.every_call import LOSSES

Step = Callable[[], None]
B, C, D = 16, 8, 6
LARGE = 4200  # classes of 64 dimensions: a gradient of 1 MB, whose memory serves again


def trained(module: nn.Module, inputs: Callable[[], dict[str, torch.Tensor]], leaf: str = "embeddings") -> Step:
    """Forward, backward and a step of SGD on whatever has parameters, on a batch that is new each time."""
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-3) if parameters else None

    def step() -> None:
        batch = inputs()
        batch[leaf].requires_grad_()
        module(**batch).backward()
        assert batch[leaf].grad is not None
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return step


def large(make: Callable[..., nn.Module]) -> Step:
    return trained(make(LARGE, 64), lambda: {"embeddings": torch.randn(4, 64), "labels": torch.randint(LARGE, (4,))})


def of_optimizer(kind: type[optim.ProxyOptimizer], grows: bool = False) -> Step:
    module = losses.ProxyAnchorLoss(C, D)
    optimizer = kind(module, lr=1e-3)

    def step() -> None:
        module(torch.randn(B, D, requires_grad=True), torch.randint(C, (B,))).backward()
        optimizer.step()
        if grows:
            optim.grow_classes(module, optimizer, 2 * C if module.num_classes == C else C)

    return step


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(B, D), torch.randint(C, (B,)), torch.randint(40, (B,))


def prism() -> Step:
    module = robust.PRISM(C, D, "vmf", 0.3, memory_size=60, vmf_start=2, num_samples=40)

    def step() -> None:
        X, labels, ids = batch()
        module.enqueue(X, labels, module(X, labels, ids).keep, ids)

    return step


def own_class_filter() -> Step:
    module = robust.OwnClassFilter()

    def step() -> None:
        X, labels, _ = batch()
        module(X, labels)

    return step


def label_correction() -> Step:
    module = robust.PRISM(C, D, "vmf", 0.3, memory_size=60, vmf_start=0)
    correction = robust.LabelCorrection(40)

    def step() -> None:
        X, labels, _ = batch()
        keep = module(X, labels).keep
        correction(module, X, labels, keep, torch.arange(len(X)))
        module.enqueue(X, labels, keep)

    return step


def memory_bank() -> Step:
    bank, classes = robust.MemoryBank(C, D, 60, num_samples=40), robust.VmfClasses(C, D)

    def step() -> None:
        classes.refresh(bank, bank.enqueue(*batch()))

    return step


def balanced_self_paced() -> Step:
    labels = torch.arange(40) % C
    paced = robust.BalancedSelfPaced(labels, solver="exact")

    def step() -> None:
        paced.update(torch.randn(40, D))
        paced.weights(torch.arange(5))

    return step


def confidence_head() -> Step:
    head = robust.ConfidenceHead(D, C, 8)

    def step() -> None:
        head(torch.randn(B, D)).sum().backward()
        head.zero_grad()

    return step


STEPS: dict[str, Callable[[], Step]] = {
    **{
        name: lambda call=call: trained(call.make(), call.inputs, call.differentiable[0])
        for name, call in LOSSES.items()
    },
    "ProxyAnchorLoss, 1 MB": lambda: large(losses.ProxyAnchorLoss),
    "NormalizedSoftmaxLoss, 1 MB": lambda: large(losses.NormalizedSoftmaxLoss),
    "PRISM": prism,
    "LabelCorrection": label_correction,
    "OwnClassFilter": own_class_filter,
    "MemoryBank": memory_bank,
    "VmfClasses": memory_bank,
    "BalancedSelfPaced": balanced_self_paced,
    "ConfidenceHead": confidence_head,
    "grow_classes": lambda: of_optimizer(optim.ProxyAdamW, grows=True),
    **{
        kind.__name__: lambda kind=kind: of_optimizer(kind)
        for kind in (optim.ProxyAdamW, optim.ProxySGD, optim.ProxyAdagrad)
    },
}


class Held(NamedTuple):
    """What a process holds."""

    resident: int  # bytes of memory
    allocated: int  # bytes that malloc has given away: those of tensors and of C++
    objects: int  # of Python that its collector follows
    blocks: int  # of Python's own allocator; its free lists take some hundred steps to fill
    handles: int  # open files
    threads: int


class _MallInfo(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def held() -> Held:
    """By Linux and glibc; after a collection, so that circles of objects do not count.

    What is there before ``gc.freeze()`` is not looked at again, which takes most of the time.
    """
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallInfo
    info = mallinfo()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"),
        info.uordblks + info.hblkhd,
        len(gc.get_objects()),
        sys.getallocatedblocks(),
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
    )


def growth(step: Step, steps: int, warm_up: int, windows: int = 1) -> Held:
    """How much more is held after ``steps`` than before; of several windows the least, as a leak is in all of them."""
    for _ in range(warm_up):
        step()
    gc.freeze()
    grown = []
    for _ in range(windows):
        before = held()
        for _ in range(steps):
            step()
        grown.append(Held(*(after - first for after, first in zip(held(), before, strict=True))))
    gc.unfreeze()
    return Held(*map(min, zip(*grown, strict=True)))
