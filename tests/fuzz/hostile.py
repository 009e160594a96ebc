"""Calls that are wrong in one argument: an error that says which, in one line, or a result that is a number.

The calls are those of ``tests/every_call.py``; the ways in which an argument can be wrong are those of its kind.
"""

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.every_call import EVERY

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


STORED = r"float8_e\w+, a type to store .* pass {}\.bfloat16\(\)"
DENSE = r"{} is of layout torch.*pass {}\.to_dense\(\)"
HALVES = torch.nested.nested_tensor
# What is wrong, and the error of the call's first matrix or vector; None: any, or a result.
OF_FLOATS: tuple[tuple[str, Callable[[Tensor, torch.Generator], Any], str | None], ...] = (
    ("NaN", lambda t, g: _row(t, math.nan, g), None),
    ("inf", lambda t, g: _row(t, math.inf, g), None),
    ("-inf", lambda t, g: _row(t, -math.inf, g), None),
    ("another dimension", lambda t, g: t[None], None),
    ("no dimension", lambda t, g: t.flatten()[0], None),
    ("one row less", lambda t, g: t[:-1], None),
    ("one column less", lambda t, g: t[..., :-1], None),
    ("no column", lambda t, g: t[..., :0], None),
    ("no rows", lambda t, g: t[:0], None),
    ("complex", lambda t, g: t + 0j, "{} must be .*complex128"),
    ("integers", lambda t, g: t.long(), "{} must be .*int64"),
    ("truth values", lambda t, g: t > 0, "{} must be .*bool"),
    ("a list", lambda t, g: t.tolist(), "{} must be .*list"),
    ("numpy", lambda t, g: t.numpy(), "{} must be .*ndarray"),
    ("none", lambda t, g: None, "{} must be .*NoneType"),
    ("a string", lambda t, g: "t", None),
    ("meta", lambda t, g: t.to("meta"), None),
    ("sparse", lambda t, g: t.to_sparse(), DENSE),
    ("mkldnn", lambda t, g: t.float().to_mkldnn(), DENSE),
    ("nested", lambda t, g: HALVES([t[:3], t[3:]]), "{} is a nested tensor"),
    ("jagged", lambda t, g: HALVES([t[:3], t[3:]], layout=torch.jagged), "{} is a nested tensor"),
    ("quantized", lambda t, g: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8), "{} .*(quantized|qint8)"),
    ("fp8", lambda t, g: t.to(torch.float8_e4m3fn), STORED),
    ("fp8-e5m2", lambda t, g: t.to(torch.float8_e5m2), STORED),
    ("conjugated", lambda t, g: torch.complex(t, t).conj(), None),
    ("float16", lambda t, g: t.half(), None),
    ("expanded", lambda t, g: t[:1].expand_as(t), None),
    ("a subclass", lambda t, g: t.as_subclass(_Named), None),
)
NEEDS_ROWS = ("one row less", "one column less", "no column", "no rows", "mkldnn", "nested", "jagged", "expanded")
OF_KIND = r"labels (must|is|are)|weights must be .* length"
OF_LABELS: tuple[tuple[str, Callable[[Tensor, torch.Generator], Any], str | None], ...] = (
    ("below 0", lambda t, g: _row(t, -1, g), None),
    ("far below 0", lambda t, g: _row(t, -(2**62), g), None),
    ("ABSENT", lambda t, g: _row(t, -(2**63), g), None),
    ("the number of classes", lambda t, g: _row(t, 4, g), None),
    ("huge", lambda t, g: _row(t, 2**62, g), None),
    ("one less", lambda t, g: t[:-1], OF_KIND),
    ("another dimension", lambda t, g: t[:, None], None),
    ("no dimension", lambda t, g: t[0], OF_KIND),
    ("one-hot", lambda t, g: torch.nn.functional.one_hot(t), OF_KIND),
    ("sparse", lambda t, g: t.to_sparse(), OF_KIND),
    ("fractions", lambda t, g: t + 0.5, None),
    ("NaN", lambda t, g: t * math.nan, None),
    ("complex", lambda t, g: t + 0j, None),
    ("a list", lambda t, g: t.tolist(), OF_KIND),
    ("numpy", lambda t, g: t.numpy(), OF_KIND),
    ("uint16", lambda t, g: t.to(torch.uint16), None),
    ("none", lambda t, g: None, OF_KIND),
)
INTEGER_KAPPA = ("bessel_ratio", "log_bessel_i", "vmf_log_normalizer", "vmf_log_peak")  # take any real numbers


class _Named(Tensor):
    """A subclass that changes nothing."""


def wrong_calls(name: str, seed: int) -> Iterator[tuple[str, Any, str, str | None]]:
    """Every argument, another value of it, how that is wrong, and the error that it must have."""
    call, generator = EVERY[name], torch.Generator().manual_seed(seed)
    inputs = call.inputs() | call.settings
    main = next(key for key, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point())
    for argument, value in inputs.items():
        if isinstance(value, Tensor):
            for how, change, error in OF_FLOATS if value.is_floating_point() else OF_LABELS:
                told = argument in (main, "labels") and not (how == "integers" and name in INTEGER_KAPPA)
                if value.dim() or how not in NEEDS_ROWS:
                    yield argument, change(value, generator), how, error if told else None
        else:
            for other in NUMBERS if isinstance(value, int | float) else ("x", None, 0):
                yield argument, other, repr(other), None


def judge(name: str, argument: str, value: Any, how: str, error: str | None) -> None:
    """An error of the clear kinds that names the argument, or a result without NaN."""
    told = None
    try:
        torch.manual_seed(0)
        result = EVERY[name](**{argument: value})
        total = sum(t.double().sum() for t in _tensors(result) if t.requires_grad)
        if isinstance(total, Tensor):
            total.backward()
    except (ValueError, TypeError, IndexError) as raised:
        told = str(raised)
    if told is not None:
        _check_message(told, argument, how)
        assert error is None or re.search(error.replace("{}", argument), told), f"{how}: {told}"
        return
    assert error is None, f"{argument} = {how} gave a result"
    for tensor in _tensors(result):
        if tensor.is_floating_point() and not tensor.is_meta:
            data = name in NAN_IS_DATA and (isinstance(value, Tensor) or argument in ("threshold", "tau"))
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
