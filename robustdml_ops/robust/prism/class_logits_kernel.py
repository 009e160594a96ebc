# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Update of scale and bias of the logits: Triton kernel."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import divide


@triton.jit(do_not_specialize=["count"])
def class_logits(
    classes,  # (count,) int64, in: with repetitions, which write the same values; None: all
    counts,  # (C,) int64, in
    scale,  # (C,) float32 or float64, out
    bias,  # (C,) as scale, out
    fitted_kappa,  # (count,) as scale, in; None, and so for all that follow: AvgSim
    fitted_log_peak,  # (count,) as scale, in
    length,  # (count,) float64, in: of the sums
    kappa,  # (C,) as scale, out
    log_peak,  # (C,) as scale, out
    count,  # classes, in
    BIAS_OF_UNSEEN: tl.constexpr,  # of classes without rows
    TINY: tl.constexpr,  # smallest normal number of the type of scale
    BLOCK: tl.constexpr,
):
    """Scale and bias: AvgSim 1/n and 0; vMF-Sim κ/‖Σ‖ and log_peak − κ, and κ and log_peak themselves."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    c = places
    if classes is not None:
        c = tl.load(classes + places, mask=inside, other=0)
    dtype: tl.constexpr = scale.dtype.element_ty
    n = tl.load(counts + c, mask=inside, other=0)
    if fitted_kappa is None:
        slope = divide(tl.full((BLOCK,), 1.0, dtype), tl.maximum(n, 1).to(dtype))
        offset = tl.zeros((BLOCK,), dtype)
    else:
        k = tl.load(fitted_kappa + places, mask=inside, other=0.0)
        peak = tl.load(fitted_log_peak + places, mask=inside, other=0.0)
        norm = tl.load(length + places, mask=inside, other=1.0)
        tiny = tl.full((), TINY, tl.float64)
        slope = (k.to(tl.float64) / tl.where(norm < tiny, tiny, norm)).to(dtype)
        offset = peak - k
        tl.store(kappa + c, k, mask=inside)
        tl.store(log_peak + c, peak, mask=inside)
    tl.store(scale + c, slope, mask=inside)
    tl.store(bias + c, tl.where(n > 0, offset, BIAS_OF_UNSEEN), mask=inside)
