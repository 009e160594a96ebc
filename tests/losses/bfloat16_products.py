"""Operands of bfloat16 in Triton's interpreter and in the products beside it, as on a GPU."""

import contextlib
from unittest import mock

import numpy
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.launches import everywhere

CONVERT, DOT = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot


def exact(A, B, out):
    """Products of a tensor core, whose sums are float32."""
    return out.copy_(A.float() @ B.float())


def accumulate(total, A, B):
    total.copy_(total.float() + A.float() @ B.float())


def converted(values, source, target, mode):
    """As a GPU converts; the interpreter cuts digits off."""
    if (source, target) == (tl.float32, tl.bfloat16):
        return torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy()
    return CONVERT(values, source, target, mode)


def multiplied(builder, a, b, *others):
    """The interpreter multiplies the bits of bfloat16 as if they were integers."""
    a, b = (widened(operand) if operand.dtype.scalar == tl.bfloat16 else operand for operand in (a, b))
    return DOT(builder, a, b, *others)


def widened(operand):
    values = (operand.data.astype(numpy.uint32) << 16).view(numpy.float32)
    return interpreter.TensorHandle(values, tl.float32)


@contextlib.contextmanager
def bfloat16_products():
    """Within, calls on the CPU multiply as a GPU does."""
    with (
        mock.patch.object(interpreter, "_convert_float", converted),
        mock.patch.object(interpreter.InterpreterBuilder, "create_dot", multiplied),
        everywhere(multiplies_bfloat16=lambda _: True, product=exact, accumulate=accumulate),
    ):
        yield
