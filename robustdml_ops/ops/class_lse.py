"""The class log-sum-exp: per sample, over all classes.

    logit_xk = scale_k s'_xk + bias_k (+ target_bias at k = label_x),    lse_x = log Σ_k exp(logit_xk)

where s' is the cosine of the sample with the proxy of class k, or pools the cosines with its H sub-centres.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.engine.class_problem import ClassProblem
from robustdml_ops.engine.class_sweep import class_sweep, class_sweep_backward
from robustdml_ops.engine.dispatch import choose
from robustdml_ops.engine.problem import LabelSets
from robustdml_ops.engine.similarities import compute_dtype
from robustdml_ops.ops.validation import (
    all_finite,
    check_finite_embeddings,
    check_label_range,
    check_labels,
    check_local,
    check_matrix,
    check_same_device,
    check_vector,
    require,
)

POOLINGS = ("none", "max", "softmax")

# embeddings (B, D), proxies (C·H, D), labels (B,), scale () or (C,), bias (C,), all checked
ClassInputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


class ClassLSE(NamedTuple):
    """What a batch sees of all classes, (B,) each."""

    lse: Tensor
    target: Tensor


class ClassSettings(NamedTuple):
    """The numbers and names among the arguments."""

    centers: int
    target_bias: float
    pooling: str
    gamma: float
    exclude_target: bool
    normalize: bool
    differentiable: bool
    backend: str


def class_lse(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    scale: float | Tensor = 1.0,
    bias: Tensor | None = None,
    target_bias: float = 0.0,
    pooling: str = "none",
    gamma: float | None = None,
    exclude_target: bool = False,
    normalize_proxies: bool = True,
    backend: str | None = None,
) -> ClassLSE:
    """Log-sum-exp of the logits of all classes, and the logit of the label, for every sample.

    Differentiable in embeddings and proxies for any upstream gradient. Forward is one sweep over the classes, backward
    another that computes the similarities again: nothing of size B×C is kept.

    Parameters
    ----------
    embeddings : Tensor
        (B, D), float64, float32, bfloat16 or float16, any scale. A zero row has cosine 0 with everything and zero
        gradient.
    proxies : Tensor
        (C, D), or (C, H, D) with H sub-centres a class; types and scales as of the embeddings.
    labels : Tensor
        (B,) integers in 0 … C − 1.
    scale : float or Tensor
        One finite number, or (C,): one for each class, such as a concentration κ. Any size and sign. No gradient.
    bias : Tensor, optional
        (C,), added to the logits; −inf masks a class. No gradient.
    target_bias : float
        Added to the logit of the label alone, as −scale·margin.
    pooling : {"none", "max", "softmax"}
        Of the H similarities s_h of a class. "max": the largest, the gradient to the first of equal ones; "softmax":
        Σ_h softmax_h(s/gamma)·s_h. "none" needs H = 1.
    gamma : float, optional
        Temperature > 0 of pooling "softmax", and needed there.
    exclude_target : bool
        Leave the label's class out of the log-sum-exp, as the Proxy-NCA of 2017 does.
    normalize_proxies : bool
        False: similarities with the proxies as they are, such as class means that are not to be of length 1.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    ClassLSE
        lse, target: (B,) each, in the compute type (float64 if either matrix is, else float32). −log P(label) is
        ``lse − target``. lse is −inf, with zero gradient, where no class counts: all masked, or C = 1 with
        ``exclude_target``. target is −inf where the label's class is masked.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or settings that do not fit; a scale or bias that requires a gradient; on the CPU also NaN or inf
        (on a GPU the result is NaN: a look would stall it).
    IndexError
        On the CPU, a label outside 0 … C − 1 (on a GPU a device-side assertion).

    Notes
    -----
    Source: the denominators of Proxy-NCA (Movshovitz-Attias et al. 2017), of SoftTriple (Qian et al. 2019, Eqs. 5–6)
    and of PRISM (Liu et al. 2021, Eqs. 7 and 14). Similarities and sums are in float32 at least, so a logit carries an
    absolute error of about 1e-7·scale. On a GPU bfloat16 and float16 inputs, and all inputs under autocast, enter the
    products as bfloat16: an error of about 2⁻⁹/√D·scale, too much for a scale of 10³ and more.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import class_lse
    >>> lse, target = class_lse(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), scale=2.0)
    >>> lse - target  # log(1 + e^-2)
    tensor([0.1269, 0.1269])
    """
    embeddings, rows, labels, centers = _check_matrices(embeddings, proxies, labels)
    dtype, C = compute_dtype(embeddings, rows), len(rows) // centers
    scale, bias = _check_vectors(embeddings, C, dtype, scale, bias)
    gamma = _check_pooling(pooling, gamma, centers)
    if not math.isfinite(target_bias):
        raise ValueError(f"target_bias must be finite, got {target_bias}: bias=-inf masks a class")
    settings = ClassSettings(
        centers=centers,
        target_bias=float(target_bias),
        pooling=pooling,
        gamma=gamma,
        exclude_target=exclude_target,
        normalize=normalize_proxies,
        differentiable=torch.is_grad_enabled() and (embeddings.requires_grad or rows.requires_grad),
        backend=backend or "auto",
    )
    tensors = (embeddings, rows, labels, scale, bias)
    if torch.compiler.is_compiling():
        from robustdml_ops.ops.class_library import class_lse_op

        return ClassLSE(*class_lse_op(*tensors, *settings))
    if not settings.differentiable:
        return ClassLSE(*run_forward(tensors, settings))
    return ClassLSE(*_ClassLSE.apply(*tensors, settings))  # type: ignore[no-untyped-call]


def _check_matrices(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Embeddings, proxies as (C·H, D), labels as int64, and H."""
    check_matrix("embeddings", embeddings)
    check_local("proxies", proxies)
    rows, centers = proxies, 1
    if isinstance(proxies, Tensor) and proxies.dim() == 3:
        rows, centers = proxies.flatten(0, 1), proxies.shape[1]
    check_matrix("proxies", rows, columns=embeddings.shape[1])
    if len(rows) == 0:
        raise ValueError(f"proxies must hold at least one class, got shape {tuple(proxies.shape)}")
    labels = check_labels(labels, embeddings)
    check_same_device(embeddings=embeddings, proxies=proxies)
    return embeddings, rows, labels, centers


def _check_vectors(
    embeddings: Tensor, num_classes: int, dtype: torch.dtype, scale: float | Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Scale as () or (C,) and bias, contiguous, since kernels read them by address, and in the compute type."""
    for name, value in (("scale", scale), ("bias", bias)):
        if not isinstance(value, Tensor):
            continue
        if name == "bias" or value.dim():
            check_vector(name, value, num_classes)
        if value.requires_grad:
            raise ValueError(f"{name} requires a gradient, and class_lse has none for it: pass {name}.detach()")
    if not isinstance(scale, Tensor):
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, got {scale}")
        scale = embeddings.new_full((), scale, dtype=dtype)
    check_same_device(embeddings=embeddings, scale=scale, bias=bias)
    return scale.to(dtype).contiguous(), None if bias is None else bias.to(dtype).contiguous()


def _check_pooling(pooling: str, gamma: float | None, centers: int) -> float:
    """The temperature; 1 where it has no part."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}: expected one of {', '.join(POOLINGS)}")
    if pooling == "none" and centers > 1:
        raise ValueError(f"proxies have {centers} sub-centres a class: choose pooling='max' or pooling='softmax'")
    if pooling != "softmax":
        if gamma is not None:
            raise ValueError(f"gamma={gamma} is the temperature of pooling='softmax', and pooling is {pooling!r}")
        return 1.0
    if gamma is None or not (0 < gamma < math.inf):
        raise ValueError(f"pooling='softmax' needs a finite gamma > 0, got {gamma}")
    return float(gamma)


def make_problem(labels: Tensor, scale: Tensor, bias: Tensor | None, settings: ClassSettings) -> ClassProblem:
    """The checked arguments as a sweep takes them."""
    return ClassProblem(
        labels=LabelSets.of(labels),
        scale=scale,
        bias=bias,
        target_bias=settings.target_bias,
        exclude_target=settings.exclude_target,
        centers=settings.centers,
        pooling=settings.pooling,
        gamma=settings.gamma,
        normalize=settings.normalize,
    )


def run_forward(tensors: ClassInputs, settings: ClassSettings) -> tuple[Tensor, Tensor]:
    """The forward sweep over detached inputs; their values and its result checked."""
    embeddings, rows, labels, scale, bias = tensors
    check_finite_embeddings(embeddings)
    check_label_range(labels, len(rows) // settings.centers)
    if scale.device.type == "cpu":
        if not all_finite(scale):
            raise ValueError(f"scale[{_first(~torch.isfinite(scale))}] is NaN or inf")
        if bias is not None:
            require((bias < torch.inf).all(), lambda: f"bias[{_first(~(bias < torch.inf))}] is NaN or inf")
    epilogue = choose(settings.backend, embeddings.device, scale.dtype)
    lse, target = class_sweep(
        embeddings, rows, make_problem(labels, scale, bias, settings), epilogue, settings.differentiable
    )
    if lse.device.type == "cpu":
        require(
            (lse < torch.inf).all(),
            lambda: (
                f"lse[{_first(~(lse < torch.inf))}] is NaN or inf: row {_first(~torch.isfinite(rows).all(1))} of the "
                "proxies has NaN or inf, or a logit overflows"
            ),
        )
    return lse, target


def _first(bad: Tensor) -> int | str:
    """Index of the first value that is; () for a single one."""
    places = bad.reshape(-1).nonzero()
    return int(places[0]) if len(places) else "none"


def run_backward(
    tensors: ClassInputs,
    results: tuple[Tensor, Tensor],
    upstream: tuple[Tensor, Tensor],
    settings: ClassSettings,
    want: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The backward sweep over detached inputs."""
    embeddings, rows, labels, scale, bias = tensors
    problem = make_problem(labels, scale, bias, settings)
    epilogue = choose(settings.backend, embeddings.device, scale.dtype)
    return class_sweep_backward(embeddings, rows, problem, results, upstream, epilogue, want)


class _ClassLSE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, settings = arguments
        results = run_forward(tuple(tensors), settings)
        ctx.save_for_backward(*tensors, *results)
        ctx.settings = settings
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dlse: Tensor, dtarget: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, lse, target = ctx.saved_tensors
        want = ctx.needs_input_grad[:2]
        dX, dP = run_backward(tuple(tensors), (lse, target), (dlse, dtarget), ctx.settings, want)
        return (None if dX is None else dX.to(tensors[0].dtype), dP, None, None, None, None)
