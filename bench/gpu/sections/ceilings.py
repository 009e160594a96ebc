"""(d) What this card can do: copies, and products in every type, large ones and those of the sweeps."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.chunk_sizes import chunk_rows
from robustdml_ops.engine.similarity_chunks import accumulate, product

from ...shapes import Shape
from ..sheet import Sheet
from ..steps import LARGE, SMALL
from ..timing import Step, measure

SQUARE = Shape(8192, 8192, 8192)
PRECISIONS = {"bfloat16": "highest", "tf32": "high", "float32": "highest"}


def run(sheet: Sheet) -> None:
    sheet.row("copy", partial(copy, sheet))
    for kind in PRECISIONS:
        sheet.row(f"product {kind}", partial(square, sheet, kind), SQUARE)
    for shape in (LARGE, SMALL):
        for kind in PRECISIONS:
            sheet.row("products of a chunk", partial(of_a_chunk, sheet, kind), shape, dtype=kind)
    sheet.row("launch", partial(launch, sheet))


def copy(sheet: Sheet, _: Shape) -> Mapping[str, Any]:
    """Bytes read and written."""
    source = torch.rand(1 << (20 if sheet.dry_run else 30), device=sheet.device)
    target = torch.empty_like(source)
    return _rate(lambda: target.copy_(source), 2.0 * source.nbytes, sheet)


def square(sheet: Sheet, kind: str, shape: Shape) -> Mapping[str, Any]:
    A, B = _random(sheet, kind, shape.B, shape.D), _random(sheet, kind, shape.D, shape.C)
    out = A.new_empty(shape.B, shape.C, dtype=_sums(sheet, A))
    return _precisely(kind, lambda: _rate(lambda: product(A, B, out), 2.0 * shape.B * shape.C * shape.D, sheet))


def of_a_chunk(sheet: Sheet, kind: str, shape: Shape) -> Mapping[str, Any]:
    """S, dX and dP of one chunk, as a sweep has them, and what all chunks would take."""
    rows = min(shape.C, chunk_rows(shape.C, shape.B + 2 * shape.D, sheet.device))
    X, V, dS = (_random(sheet, kind, *size) for size in ((shape.B, shape.D), (rows, shape.D), (rows, shape.B)))
    sums = _sums(sheet, X)
    S, dX, dP = dS.new_empty(dS.shape, dtype=sums), X.new_zeros(X.shape, dtype=sums), V.new_empty(V.shape, dtype=sums)

    def products() -> None:
        product(V, X.t(), S)
        accumulate(dX, dS.t(), V)
        product(dS, X, dP)

    found = _precisely(kind, lambda: _rate(products, 6.0 * shape.B * rows * shape.D, sheet))
    return {**found, "rows": rows, "whole_s": found["step_s"] * shape.C / rows}


def launch(sheet: Sheet, _: Shape) -> Mapping[str, Any]:
    """Seconds of the host for an operation that hardly takes the device any time."""
    number, took = torch.zeros((), device=sheet.device), []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(100):
            number.add_(1)
        took.append((time.perf_counter() - start) / 100)
        if sheet.device.type == "cuda":
            torch.cuda.synchronize()
    return {"host_s": statistics.median(took)}


def _random(sheet: Sheet, kind: str, *size: int) -> Tensor:
    return torch.randn(size, device=sheet.device).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)


def _sums(sheet: Sheet, operand: Tensor) -> torch.dtype:
    """Products of bfloat16 that sum in float32 into float32 are CUDA's."""
    return torch.float32 if sheet.device.type == "cuda" else operand.dtype


def _rate(run: Callable[[], object], amount: float, sheet: Sheet) -> dict[str, Any]:
    found = measure(Step(run), sheet.device)
    return {**found, "rate": amount / found["step_s"]}


def _precisely(kind: str, measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(PRECISIONS[kind])
    try:
        return measured()
    finally:
        torch.set_float32_matmul_precision(before)
