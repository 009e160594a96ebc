"""Calls that are wrong in one argument: an error that says which, in one line, or a result that is a number.

The calls are those of ``tests/every_call.py``; the ways in which an argument can be wrong are those of its kind.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from tests.every_call import EVERY, Call

CLEAR = (ValueError, TypeError, IndexError)
# NaN is data there: it takes no part, or is NaN in the result as well, as their docstrings say.
NAN_IS_DATA = {
    "confidence", "superloss", "otsu_confidence", "otsu_threshold", "lambertw", "SuperLoss", "similarity",
    "vmf_log_likelihood",
}  # fmt: skip
NUMBERS = (
    math.nan, math.inf, -math.inf, -1.0, 0, -0.0, 1e-320, 1e308, 1e39, 10**400, "0.1", "", None, True, [0.1], (1.0,),
    {}, 1j, b"1", Decimal("0.5"), Fraction(1, 3), np.float64(0.5), np.float32(0.25), np.int64(2), np.array(0.5),
    np.array([0.5, 0.5]), torch.tensor(0.5), torch.ones(3), torch.nan, object, 2**63, 3, 0.5,
)  # fmt: skip


def _row(t: Tensor, value: float, generator: torch.Generator) -> Tensor:
    t = t.clone()
    if t.numel():
        t.view(-1)[int(torch.randint(t.numel(), (), generator=generator))] = value
    return t


OF_FLOATS: tuple[tuple[str, Callable[[Tensor, torch.Generator], Any]], ...] = (
    ("NaN", lambda t, g: _row(t, math.nan, g)),
    ("inf", lambda t, g: _row(t, math.inf, g)),
    ("-inf", lambda t, g: _row(t, -math.inf, g)),
    ("another dimension", lambda t, g: t[None]),
    ("no dimension", lambda t, g: t.flatten()[0]),
    ("one row less", lambda t, g: t[:-1]),
    ("one column less", lambda t, g: t[..., :-1]),
    ("no column", lambda t, g: t[..., :0]),
    ("no rows", lambda t, g: t[:0]),
    ("complex", lambda t, g: t + 0j),
    ("integers", lambda t, g: t.long()),
    ("truth values", lambda t, g: t > 0),
    ("a list", lambda t, g: t.tolist()),
    ("numpy", lambda t, g: t.numpy()),
    ("a string", lambda t, g: "t"),
    ("meta", lambda t, g: t.to("meta")),
    ("sparse", lambda t, g: t.to_sparse()),
    ("fp8", lambda t, g: t.to(torch.float8_e5m2)),
    ("conjugated", lambda t, g: torch.complex(t, t).conj()),
    ("float16", lambda t, g: t.half()),
    ("expanded", lambda t, g: t[:1].expand_as(t)),
    ("a subclass", lambda t, g: t.as_subclass(_Named)),
)
NEEDS_ROWS = ("one row less", "one column less", "no column", "no rows", "expanded")
OF_LABELS: tuple[tuple[str, Callable[[Tensor, torch.Generator], Any]], ...] = (
    ("below 0", lambda t, g: _row(t, -1, g)),
    ("far below 0", lambda t, g: _row(t, -(2**62), g)),
    ("ABSENT", lambda t, g: _row(t, -(2**63), g)),
    ("the number of classes", lambda t, g: _row(t, 4, g)),
    ("huge", lambda t, g: _row(t, 2**62, g)),
    ("one less", lambda t, g: t[:-1]),
    ("another dimension", lambda t, g: t[:, None]),
    ("fractions", lambda t, g: t + 0.5),
    ("NaN", lambda t, g: t * math.nan),
    ("complex", lambda t, g: t + 0j),
    ("a list", lambda t, g: t.tolist()),
    ("uint16", lambda t, g: t.to(torch.uint16)),
    ("none", lambda t, g: None),
)


class _Named(Tensor):
    """A subclass that changes nothing."""


@st.composite
def wrong_calls(draw, name: str) -> tuple[Call, dict[str, Any], str, str]:
    """The call, what is changed, the argument, and how it is wrong."""
    call = EVERY[name]
    inputs = call.inputs() | call.settings
    argument = draw(st.sampled_from(sorted(inputs)))
    value, generator = inputs[argument], torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if isinstance(value, Tensor):
        how, change = draw(st.sampled_from(OF_FLOATS if value.is_floating_point() else OF_LABELS))
        assume(value.dim() or how not in NEEDS_ROWS)
        return call, {argument: change(value, generator)}, argument, how
    if isinstance(value, int | float):
        other = draw(st.sampled_from(NUMBERS))
        return call, {argument: other}, argument, repr(other)
    other = draw(st.sampled_from(["x", None, 0]))
    return call, {argument: other}, argument, repr(other)


def judge(name: str, call: Call, changed: dict[str, Any], argument: str, how: str) -> None:
    """An error of the clear kinds that names the argument, or a result without NaN."""
    try:
        torch.manual_seed(0)
        result = call(**changed)
        total = sum(t.double().sum() for t in _tensors(result) if t.requires_grad)
        if isinstance(total, Tensor):
            total.backward()
    except CLEAR as error:
        _check_message(str(error), argument, how)
        return
    for tensor in _tensors(result):
        if tensor.is_floating_point() and not tensor.is_meta:
            data = name in NAN_IS_DATA and (isinstance(changed[argument], Tensor) or argument in ("threshold", "tau"))
            assert data or not tensor.isnan().any(), f"{argument} = {how} gave NaN without a word"


def _check_message(message: str, argument: str, how: str) -> None:
    assert message, f"{argument} = {how}: an error without a message"
    head = message if "tensor(" in message else message.split("\n")[0]
    assert len(message.split("\n")) == 1 or "tensor(" in message, f"{argument} = {how}: several lines: {message}"
    named = {argument, argument.rstrip("s"), *_PARTNERS.get(argument, "").split()} & set(re.findall(r"\w+", head))
    assert named, f"{argument} = {how}: an error that does not name it: {message}"


# Of two arguments that must agree, the error may name the other one.
_PARTNERS = {
    "labels": "embeddings weights label candidate_labels",
    "embeddings": "labels proxies candidates confidences text_embeddings others biases positive_scale row sets losses",
    "proxies": "embeddings label labels biases positive_scale sets row",
    "candidates": "candidate_labels embeddings",
    "candidate_labels": "candidates",
    "positive_scale": "scale",
    "negative_scale": "scale",
    "sums": "counts",
    "counts": "sums",
    "weights": "labels positive negative",
    "positive": "labels",
    "negative": "labels",
    "queries": "gallery",
    "gallery": "queries k",
    "k": "gallery",
    "x": "mean_direction kappa dim",
    "mean_direction": "x kappa",
    "kappa": "mean_direction",
    "confidences": "embeddings",
    "text_embeddings": "embeddings",
    "others": "embeddings",
    "sets": "LabelSets ConfidenceSets",
    "biases": "AnchorBiases",
}


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [t for t in result if isinstance(t, Tensor)] if isinstance(result, tuple) else []
