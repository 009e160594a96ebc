"""What a step should take, from what it does: flops, bytes, instructions and launches, each over the card's rate.

Bytes are counted as in docs/design.md: what a kernel reads and writes of matrices of size B×C and C×D, each once, with
bfloat16 operands and sums in float32. A kernel takes as long as the slowest of its parts; kernels follow each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..shapes import Shape
from .ceilings import Ceilings

# Instructions an element of S, counted in the machine code for sm_90.
INSTRUCTIONS = {"anchor_lse": 25, "class_lse": 22, "class_lse_backward": 25}
LEAST_S = 3e-6  # of a kernel, however small
HALF, FULL = 2, 4  # bytes


@dataclass(frozen=True)
class Kernel:
    """One kernel, or as many of a kind as there are chunks."""

    name: str
    flops: float = 0.0
    bytes: float = 0.0
    instructions: float = 0.0

    def seconds(self, card: Ceilings) -> float:
        parts = (
            self.flops / card.bfloat16,
            self.bytes / card.bytes_per_s,
            self.instructions / card.instructions_per_s,
        )
        return max(LEAST_S, *parts)


@dataclass(frozen=True)
class Prediction:
    """Of a step."""

    kernels: tuple[Kernel, ...]
    launches: int | None  # None: not counted

    def device_s(self, card: Ceilings) -> float:
        return sum(kernel.seconds(card) for kernel in self.kernels)

    def host_s(self, card: Ceilings) -> float:
        return (self.launches or 0) * card.launch_s

    def seconds(self, card: Ceilings) -> float:
        """The host runs ahead of the device, or the device waits for it."""
        return max(self.device_s(card), self.host_s(card))

    def told(self, card: Ceilings) -> str:
        """The count behind it."""
        flops, moved = (sum(getattr(kernel, part) for kernel in self.kernels) for part in ("flops", "bytes"))
        counted = (
            "" if self.launches is None else f", {self.launches} launches: {1e3 * self.host_s(card):.2g} ms of host"
        )
        return f"{flops / 1e12:.3g} TFLOP, {moved / 1e9:.3g} GB: {1e3 * self.device_s(card):.3g} ms of device{counted}"


def products(shape: Shape) -> tuple[Kernel, Kernel, Kernel]:
    """S, dX and dP."""
    S, P, flops = shape.B * shape.C, shape.C * shape.D, 2.0 * shape.B * shape.C * shape.D
    return (
        Kernel("S", flops, HALF * P + FULL * S),
        Kernel("dX", flops, HALF * S + HALF * P),
        Kernel("dP", flops, HALF * S + FULL * P),
    )


def rows(shape: Shape) -> tuple[Kernel, Kernel, Kernel]:
    """Unit rows of half-precision proxies, the Jacobian, and the gradient's rounding."""
    P = shape.C * shape.D
    return (
        Kernel("unit rows", bytes=2 * HALF * P),
        Kernel("Jacobian", bytes=(2 * FULL + HALF) * P),
        Kernel("rounding", bytes=(FULL + HALF) * P),
    )


def epilogue(shape: Shape, name: str, bytes_each: int) -> Kernel:
    S = shape.B * shape.C
    return Kernel(name, bytes=bytes_each * S, instructions=INSTRUCTIONS.get(name, 0) * S)


def proxy_anchor(shape: Shape) -> tuple[Kernel, ...]:
    """One sweep."""
    unit, jacobian, rounding = rows(shape)
    S, dX, dP = products(shape)
    return unit, S, epilogue(shape, "anchor_lse", FULL + HALF), dX, dP, jacobian, rounding


def proxy_nca(shape: Shape) -> tuple[Kernel, ...]:
    """Two sweeps."""
    unit, jacobian, rounding = rows(shape)
    S, dX, dP = products(shape)
    forward = (unit, S, epilogue(shape, "class_lse", FULL))
    return *forward, unit, S, epilogue(shape, "class_lse_backward", FULL + HALF), dX, dP, jacobian, rounding


def multi_similarity(shape: Shape) -> tuple[Kernel, ...]:
    """A batch with itself: S, its epilogue in float32, dS + dSᵀ rounded, and one product."""
    n, D = shape.B, shape.D
    S, flops = n * n, 2.0 * n * n * D
    pairs = Shape(n, n, D)
    return (
        Kernel("S", flops, FULL * S),
        epilogue(pairs, "pair_lse", 2 * FULL),
        Kernel("dS + dSᵀ", bytes=3 * FULL * S),
        Kernel("rounding", bytes=(FULL + HALF) * S),
        Kernel("dX", flops, HALF * S),
    )


def class_forward(shape: Shape) -> tuple[Kernel, ...]:
    """In one launch, P read once for every 64 samples, from the cache beyond the first."""
    flops = 2.0 * shape.B * shape.C * shape.D
    return (Kernel("fused", flops, HALF * shape.C * shape.D, INSTRUCTIONS["class_lse"] * shape.B * shape.C),)


def dense(bytes_each: float) -> Callable[[Shape], tuple[Kernel, ...]]:
    """Three products and element-wise kernels that move so many bytes an element of S beside them."""

    def kernels(shape: Shape) -> tuple[Kernel, ...]:
        return *products(shape), Kernel("element by element", bytes=bytes_each * shape.B * shape.C)

    return kernels


def otsu(shape: Shape) -> tuple[Kernel, ...]:
    """Sorted by one program: log₂n(log₂n + 1)/2 stages of compare and exchange, each some 150 ns of latency."""
    stages = (shape.B - 1).bit_length() * ((shape.B - 1).bit_length() + 1) / 2
    return (Kernel("sort and sums", instructions=stages * 150e-9 * Ceilings().instructions_per_s),)


KERNELS: dict[str, Callable[[Shape], tuple[Kernel, ...]]] = {
    "proxy-anchor": proxy_anchor,
    "proxy-nca": proxy_nca,
    "multi-similarity": multi_similarity,
    "class forward": class_forward,
    "otsu": otsu,
}


def predicted(name: str, shape: Shape) -> Prediction:
    """Of one of our steps; launches counted on tensors without values where the tests are at hand."""
    return Prediction(KERNELS[name](shape), launches(name, shape))


def launches(name: str, shape: Shape) -> int | None:
    """What a step asks the device to run."""
    from .steps import STEPS, Inputs

    step = STEPS[name](Inputs(shape, "bfloat16", torch.device("meta")))
    return counted(step.run)


def filter_launches(similarity: str, scores: bool) -> int | None:
    """Of PRISM by ``similarity``, its scores alone or the whole step, at the size of a first trial."""
    from robustdml_ops.robust import PRISM

    from .steps import SMALL

    vmf, meta = {"vmf_start": 0} if similarity == "vmf" else {}, torch.device("meta")
    prism = PRISM(SMALL.C, SMALL.D, similarity, 0.5, "smooth-top-r", memory_size=4 * SMALL.C, **vmf).to(meta)
    X = torch.empty(SMALL.B, SMALL.D, device=meta)
    y = torch.empty(SMALL.B, dtype=torch.int64, device=meta)

    def step() -> None:
        if scores:
            prism.log_p_clean(X, y)
        else:
            prism.enqueue(X, y, prism(X, y).keep)

    return counted(step) and counted(step)  # the second time nothing is new


def counted(run: Callable[[], object]) -> int | None:
    """What ``run`` asks the device for, on tensors of "meta"; None where the tests are not at hand."""
    try:
        from tests.launches import counted as counting
    except BaseException as error:  # pytest's skip is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None
    with counting() as found:
        run()
    total: Any = found.total
    return int(total)
