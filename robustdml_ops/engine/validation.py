"""Checks that the ops share: each error names the argument, its value and the way out."""

import math
import numbers
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import has_no_values, refuse_vmap

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_COMPUTED = frozenset((*FLOATS, *INTEGERS, torch.bool))
_PLAIN = (Tensor, torch.nn.Parameter)
_LARGEST = int(torch.finfo(torch.float64).max)


def check_matrix(name: str, value: object, *, columns: int | None = None) -> Tensor:
    """Return ``value`` if it is a floating-point matrix of plain local storage, with ``columns`` columns."""
    value = check_tensor(name, value)
    if value.dim() != 2 or not value.is_floating_point():
        raise ValueError(f"{name} must be a floating-point matrix, got shape {tuple(value.shape)} of {value.dtype}")
    if columns is not None and value.shape[1] != columns:
        raise ValueError(f"{name} must have {columns} columns, got shape {tuple(value.shape)}")
    if value.shape[1] == 0:
        raise ValueError(
            f"{name} must have at least one column, got shape {tuple(value.shape)}: nothing has no direction"
        )
    return value


def check_choice(choices: Collection[str | None], **given: str | None) -> None:
    """Every argument is one of the choices."""
    for name, value in given.items():
        if value not in choices:
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(str, choices))}")


def check_sizes(least: int = 1, **sizes: int) -> None:
    """Every size is an integer of at least 1, or ``least``."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, (int, numbers.Integral)):
            raise TypeError(f"{name} must be an integer, got {value!r}: pass int(...) of it if that is what is meant")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_finite_numbers(**settings: float) -> None:
    """Settings that are numbers and not NaN or inf."""
    for name, value in settings.items():
        check_number(name, value)
        if not -math.inf < value < math.inf:
            raise ValueError(f"{name} must be finite, got {value}")


def check_positive(**settings: float) -> None:
    """Every number is above 0, and not inf."""
    for name, value in settings.items():
        check_number(name, value)
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")


class SimilarityLimits(NamedTuple):
    """Limits (B,) that need no checks: contiguous, of the compute type, on the batch's device, none of them NaN."""

    values: Tensor


def similarity_limits(drop_similar_negatives: Any, embeddings: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The cosine above which the negatives of each sample are left out, (B,) ``dtype``; None where all stay."""
    limit, name = drop_similar_negatives, "drop_similar_negatives"
    if isinstance(limit, SimilarityLimits):
        return limit.values
    if isinstance(limit, Tensor):
        check_same_device(embeddings=embeddings, drop_similar_negatives=limit)
        limits = check_vector(name, limit, len(embeddings)).detach().to(dtype).contiguous()
        require(~limits.isnan().any(), lambda: f"{name}[{int(limits.isnan().nonzero()[0])}] is NaN")
        return limits
    if limit is not None:
        check_cosine(limit)
    # Beyond 1 there is rounding alone.
    return None if limit is None or limit == 1 else embeddings.new_full((len(embeddings),), limit, dtype=dtype)


def check_cosine(drop_similar_negatives: Any) -> None:
    """A threshold in (−1, 1], above whose cosine a negative class is left out."""
    if isinstance(drop_similar_negatives, str):
        raise TypeError(f"drop_similar_negatives must be a number or 'own', got {drop_similar_negatives!r}")
    check_number("drop_similar_negatives", drop_similar_negatives)
    if not -1 < drop_similar_negatives <= 1:
        raise ValueError(
            f"drop_similar_negatives must lie in (-1, 1], got {drop_similar_negatives}: a cosine above which a "
            "negative class is left out, such as 0.4; to a loss also 'own'"
        )


def check_number(name: str, value: object) -> None:
    """A Python or NumPy number that a float64 can stand for; fractions, which tensors do not take, are none."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r}: pass float(...) of it")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{name} must be in the range of float64, got an integer of {value.bit_length()} bits")


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a real number of Python or NumPy, and not a truth value."""
    if type(value) is float or type(value) is int:  # almost all are, and the rest of this is slow
        return True
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return isinstance(value, numbers.Integral) or not isinstance(value, numbers.Rational)


def check_steepness(dtype: torch.dtype, **scales: float) -> None:
    """Positive numbers that cosines, right within ε of ``dtype``, are multiplied by in an exponent: at most 1/ε."""
    check_positive(**scales)
    largest = 1 / torch.finfo(dtype).eps
    for name, value in scales.items():
        if value > largest:
            raise ValueError(
                f"{name} must be at most {largest:.2g} in {dtype}, got {value}: the exponent would be rounding alone"
            )


def check_local(name: str, value: object) -> None:
    """Refuse tensors of a kind that no op here computes with, before one of them fails in the midst of it."""
    if not isinstance(value, Tensor):
        return
    # Almost all are plain tensors: one look for those.
    if type(value) in _PLAIN and value.dtype in _COMPUTED and value.layout is torch.strided and not value.is_nested:
        return
    if type(value).__name__ == "DTensor":  # its local part alone would give a wrong sum without a word
        raise TypeError(
            f"{name} is a DTensor, and this op works on local tensors: pass {name}.full_tensor(), or {name}.to_local() "
            "if each rank is to have a loss of its own"
        )
    if value.is_nested:
        raise ValueError(f"{name} is a nested tensor, and all rows must be of one length: pass them as a matrix")
    if value.layout != torch.strided:
        raise ValueError(
            f"{name} is of layout {value.layout}, and dense tensors are computed with: pass {name}.to_dense()"
        )
    if value.is_quantized:
        raise ValueError(f"{name} is quantized, {value.dtype}: pass {name}.dequantize()")
    if value.is_floating_point() and value.dtype not in FLOATS:
        raise ValueError(f"{name} is of {value.dtype}, a type to store and not to compute in: pass {name}.bfloat16()")


def check_tensor(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a tensor of plain local storage."""
    check_local(name, value)
    if isinstance(value, Tensor):
        return value
    several = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    first = next(iter(value), None) if several else None  # type: ignore[call-overload]
    way_out = ""
    if isinstance(first, str):
        way_out = f": number what it names, torch.from_numpy(numpy.unique({name}, return_inverse=True)[1])"
    elif isinstance(value, np.ndarray):
        way_out = f": pass torch.from_numpy({name})"
    elif isinstance(first, numbers.Real):
        way_out = f": pass torch.tensor({name})"
    raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}{way_out}")


def check_same_device(**tensors: Tensor | None) -> None:
    """All tensors on one device."""
    given = {name: value.device for name, value in tensors.items() if value is not None}
    if len(set(given.values())) > 1:
        places = ", ".join(f"{name} on {device}" for name, device in given.items())
        raise ValueError(f"all inputs must be on one device, got {places}: move them, or the loss, with .to(device)")


def check_vector(name: str, value: object, length: int) -> Tensor:
    """Return ``value`` if it is a floating-point vector of ``length``."""
    value = check_tensor(name, value)
    if value.dim() != 1 or len(value) != length or not value.is_floating_point():
        way_out = "" if value.is_floating_point() else f": convert it with {name}.float()"
        raise ValueError(
            f"{name} must be a floating-point vector of length {length}, got {tuple(value.shape)} of {value.dtype}"
            f"{way_out}"
        )
    return value


def largest_weight(dtype: torch.dtype) -> float:
    """The largest weight: a loss times two of them, summed over a batch, is finite."""
    return math.sqrt(torch.finfo(dtype).max) / 16


def check_sample_weights(sample_weights: object, samples: Tensor) -> Tensor:
    """Weights, finite and not negative, or truth values, for each entry of ``samples``; of its type, on its device."""
    if isinstance(sample_weights, Tensor) and sample_weights.dtype == torch.bool:
        sample_weights = sample_weights.to(samples.dtype)
    weights = check_vector("sample_weights", sample_weights, len(samples)).to(samples.device, samples.dtype)
    largest = largest_weight(weights.dtype)
    served = (weights >= 0) & (weights <= largest)
    require(
        served.all(),
        lambda: (
            f"sample_weights must be finite and not negative, got {weights[~served][:3].tolist()}: at most "
            f"{largest:.2g} in {weights.dtype}, where a loss is still finite"
        ),
    )
    return weights


def check_range(values: Tensor, size: int, one: str, name: str, name_of_size: str) -> None:
    """Every value in 0 … size − 1; errors as :func:`check_label_range`."""
    if values.numel() == 0:
        return
    if values.device.type != "cpu" or has_no_values(values):
        torch._assert_async((values == values.clamp(0, size - 1)).all(), f"a {one} is outside 0 … {size - 1}")
        return
    least, largest = map(int, values.aminmax())
    if least < 0 or largest >= size:
        where = ((values < 0) | (values >= size)).nonzero()[0].tolist()
        raise IndexError(
            f"{name}{where} = {int(values[tuple(where)])} is outside 0 … {size - 1} ({name_of_size} = {size})"
        )


def all_finite(values: Tensor) -> bool:
    """No NaN or inf in ``values``, of the CPU. Most often their sum, in a fifth of the time, tells; it may overflow."""
    refuse_vmap(values)
    return math.isfinite(values.detach().sum()) or bool(torch.isfinite(values).all())


class NotFiniteError(ValueError):
    """Embeddings that hold NaN or inf, or margins at a pole of the loss: a training run has diverged."""


def check_finite_embeddings(embeddings: Tensor, name: str = "embeddings") -> None:
    """No NaN or inf on the CPU. Elsewhere a look would stall the stream: the loss is NaN then."""
    way_out = "look for an overflow in the model or a learning rate too high"
    check_finite_rows(embeddings, name, way_out, NotFiniteError)


def check_finite_rows(rows: Tensor, name: str, way_out: str, error: type[ValueError] = ValueError) -> None:
    """No NaN or inf on the CPU; ``rows`` may have any number of dimensions."""
    if rows.device.type != "cpu":
        return
    if has_no_values(rows):
        torch._assert_async(torch.isfinite(rows).all(), f"{name} has NaN or inf; run this batch in eager mode")
    elif not all_finite(rows):
        row = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0])
        raise error(f"{name}[{row}] has NaN or inf: {way_out}")


def check_elements(name: str, values: Tensor, served: Callable[[Tensor], Tensor], wanted: str) -> None:
    """On the CPU, raise for the first element that is not ``served``: its place, its value and what is wanted."""
    if values.device.type != "cpu" or has_no_values(values):
        return
    refuse_vmap(values)
    valid = served(values)
    if not valid.all():
        where = [int(i) for i in (~valid).nonzero()[0]]
        raise ValueError(f"{name}{where or ''} = {float(values[tuple(where)])}{wanted}")


def check_gradient_fits(gradient: Tensor, inverse_norm: Tensor, name: str, first: int = 0) -> None:
    """Raise where the gradient of a short row overflows: it is dL/d(direction) divided by the row's length."""
    short = 1e9  # 1 / length
    if all_finite(gradient):
        return
    beyond = (~torch.isfinite(gradient)).any(1)
    if (beyond & ~(inverse_norm > short)).any():
        return  # the upstream gradient is not finite: a loss scaler's affair
    row = int(beyond.nonzero()[0])
    raise ValueError(
        f"the gradient of {name}[{first + row}] is beyond {gradient.dtype}: it is divided by the length of the row, "
        f"{float(1 / inverse_norm[row]):.1e}. Scale such rows up, or give float64"
    )


def check_finite_candidates(scale: Tensor, name: str = "candidates[{}] (ref_emb of a loss)", first: int = 0) -> None:
    """No NaN or inf among rows on the CPU, found by their inverse lengths ``scale`` (m,) without reading the rows."""
    if scale.device.type == "cpu" and not all_finite(scale):
        row = int((~torch.isfinite(scale)).nonzero()[0])
        raise ValueError(f"{name.format(first + row)} has NaN or inf: look at what was stored, or at the model")


def check_finite_proxies(total: Tensor, proxies: Tensor) -> None:
    """No NaN or inf among proxies on the CPU, found by the loss of finite embeddings without reading the proxies."""
    if total.device.type == "cpu" and not math.isfinite(total.item()):
        bad = (~torch.isfinite(proxies)).any(1).nonzero()
        where = (
            f"proxies[{int(bad[0])}] has NaN or inf"
            if len(bad)
            else "a bias, a scale, a confidence or the length of a vector is NaN or inf"
        )
        raise ValueError(f"the loss is {float(total)}: {where}")


def require(condition: Tensor, message: Callable[[], str], error: type[ValueError] = ValueError) -> None:
    """Raise ``error`` where ``condition`` () is false: on the CPU with the values, else by a device-side assertion."""
    refuse_vmap(condition)
    if condition.device.type != "cpu" or has_no_values(condition):
        torch._assert_async(condition, "a value is out of range; run this batch on the CPU for its name")
    elif not condition:
        raise error(message())


def check_losses(losses: object) -> Tensor:
    """One floating-point tensor of any shape, in the type that is computed in."""
    losses = check_tensor("losses", losses)
    if not losses.is_floating_point():
        raise ValueError(f"losses must be floating point, got {losses.dtype}: convert them with losses.float()")
    return losses if losses.dtype == torch.float64 else losses.float()
