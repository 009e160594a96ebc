"""The class log-sum-exp: per sample, over all classes.

    logit_xk = scale_k s'_xk + bias_k (+ target_bias at k = label_x),    lse_x = log Σ_k exp(logit_xk)

where s' is the cosine of the sample with the proxy of class k, or pools the cosines with its H sub-centres.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import apply_function, compute_dtype, in_eager_mode, operand_dtype
from robustdml_ops.engine.labels import ABSENT, ELSEWHERE, LabelSets, check_distinct, check_label_range, check_labels
from robustdml_ops.engine.op_arguments import flatten
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.similarity_chunks import checked_count
from robustdml_ops.engine.validation import (
    SimilarityLimits,
    check_choice,
    check_local,
    check_matrix,
    check_same_device,
    check_vector,
    similarity_limits,
)
from robustdml_ops.ops.classes.autograd import ClassSweep, Settings, sweep_values
from robustdml_ops.ops.classes.sweep import ClassProblem, ClassSeen, bounded

POOLINGS = ("none", "max", "softmax")


class ClassLSE(NamedTuple):
    """Log-sum-exp over all classes (B,), and logit of the label (B,), or of several (B, K)."""

    lse: Tensor
    target: Tensor


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
    drop_similar_negatives: float | Tensor | SimilarityLimits | None = None,
    logit_weights: Tensor | None = None,
    elsewhere: bool = False,
    backend: str | None = None,
    update: ProxyUpdate | None = None,
    seen: ClassSeen | None = None,
) -> ClassLSE:
    """Log-sum-exp of the logits of all classes, and the logit of the label, for every sample.

    Differentiable in embeddings and proxies for any upstream gradient. In eager mode the terms of the sum are saved for
    backward where logits are within ±64, as far as they fit, see :func:`~robustdml_ops.ops.limit_saved_bytes`;
    on a GPU all or none, where ``scale`` is a number, without bias and pooling. Else backward makes the similarities
    again.

    Parameters
    ----------
    embeddings : Tensor
        (B, D), float64, float32, bfloat16 or float16, any scale. A zero row has cosine 0 with everything and zero
        gradient.
    proxies : Tensor
        (C, D), or (C, H, D) with H sub-centres a class; types and scales as for the embeddings.
    labels : Tensor
        (B,) integers in 0 … C − 1; or (B, K), the classes of a sample, distinct, with ``robustdml_ops.ops.ABSENT``
        where it has fewer.
    scale : float or Tensor
        One finite number, or (C,): one for each class, such as a concentration κ. Any size and sign. No gradient.
    bias : Tensor, optional
        (C,), added to the logits; −inf masks a class. No gradient.
    target_bias : float
        Added to the logit of the label alone, or of each, as −scale·margin.
    pooling : {"none", "max", "softmax"}
        Of the H similarities s_h of a class. "max": the largest, the gradient to the first of equal ones; "softmax":
        Σ_h softmax_h(s/gamma)·s_h. "none" needs H = 1.
    gamma : float, optional
        Temperature > 0 of pooling "softmax", and needed there.
    exclude_target : bool
        Leave the label's class, or classes, out of the log-sum-exp, as the Proxy-NCA of 2017 does.
    normalize_proxies : bool
        False: similarities with the proxies as they are, such as class means that are not to be of length 1.
    drop_similar_negatives : float or Tensor, optional
        In (−1, 1], or one limit for each sample, (B,), of any size: classes whose s' with the sample is larger are left
        out of its log-sum-exp, but never its label's. Which these are is a constant for the gradient.
    logit_weights : Tensor, optional
        (C,) finite weights v_k. Asks for Σ_k v_k logit_xk, too, over the classes that are no label of the sample, as
        label smoothing needs it. No gradient. Not beside ``bias`` and ``drop_similar_negatives``.
    elsewhere : bool
        The proxies are a shard of the classes, maybe empty. The label of a sample whose class is in another shard is
        ``robustdml_ops.ops.ELSEWHERE``, and its target −inf, as for any label that is no class here: the range of the
        labels is not checked.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.
    update : ProxyUpdate, optional
        The step of an optimiser of :mod:`robustdml_ops.optim`, taken in backward; the proxies get no gradient. Eager
        mode only. With an update of the rows of M classes the sweep is over these: labels, ``scale`` and ``bias`` count
        among them.
    seen : ClassSeen, optional
        Memory, made of each sample's similarity with its own class, for its largest similarity with another class that
        counts, and for the number of those that are above that of its own. Filled in eager mode only.

    Returns
    -------
    ClassLSE
        lse (B,) and target, of the shape of labels, in the compute type (float64 if either matrix is, else float32).
        −log P(label) is ``lse − target``. lse is −inf, with zero gradient, where no class counts: all masked, or C = 1
        with ``exclude_target``. target is −inf where the label's class is masked, or ABSENT. With ``logit_weights``
        it is (B, K + 1), and the last column is that sum.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or settings that do not fit; a scale or bias that requires a gradient; on the CPU also NaN or inf,
        and in backward a row so short that its gradient overflows (on a GPU the result is NaN or inf: a check would
        stall it).
    IndexError
        On the CPU, a label outside 0 … C − 1 (on a GPU a device-side assertion).

    Notes
    -----
    Source: the denominators of Proxy-NCA (Movshovitz-Attias et al. 2017), of SoftTriple (Qian et al. 2019, Eqs. 5–6)
    and of PRISM (Liu et al. 2021, Eqs. 7 and 14). A logit carries an absolute error of about 1e-7·scale; where products
    are in bfloat16, as in :func:`anchor_lse`, of about 2⁻⁹/√D·scale, too much for a scale of 10³ and more.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import class_lse
    >>> lse, target = class_lse(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), scale=2.0)
    >>> lse - target  # log(1 + e^-2)
    tensor([0.1269, 0.1269])
    """
    check_matrix("embeddings", embeddings)
    check_local("proxies", proxies)
    rows, centers = proxies, 1
    if isinstance(proxies, Tensor) and proxies.dim() == 3:
        rows, centers = proxies.flatten(0, 1), proxies.shape[1]
    check_matrix("proxies", rows, columns=embeddings.shape[1])
    if len(rows) == 0 and not elsewhere:
        raise ValueError(f"proxies must hold at least one class, got shape {tuple(proxies.shape)}")
    labels = check_labels(labels, embeddings, several=True)
    check_same_device(embeddings=embeddings, proxies=proxies)
    dtype, C = compute_dtype(embeddings, rows), checked_count(rows, update) // centers
    keep = logit_weights is None and bounded(labels, scale, bias, pooling, normalize_proxies)
    scale, bias = _check_vectors(embeddings, C, dtype, scale, bias)
    if logit_weights is not None:
        _, logit_weights = _check_vectors(embeddings, C, dtype, 1.0, logit_weights, "logit_weights")
        if bias is not None or drop_similar_negatives is not None:
            raise ValueError("logit_weights beside bias or drop_similar_negatives, which leave classes out: give one")
    gamma = _check_pooling(pooling, gamma, centers)
    if not -math.inf < target_bias < math.inf:
        raise ValueError(f"target_bias must be finite, got {target_bias}: bias=-inf masks a class")
    limits = similarity_limits(drop_similar_negatives, embeddings, dtype)
    if drop_similar_negatives is not None and not normalize_proxies:
        raise ValueError("drop_similar_negatives is of cosines: leave it out beside normalize_proxies=False")
    if labels.dim() == 2:
        labels, elsewhere = _check_several(labels, C, elsewhere), True
    problem = ClassProblem(
        labels=LabelSets.of(labels, elsewhere),
        scale=scale,
        bias=bias,
        centers=centers,
        target_bias=float(target_bias),
        pooling=pooling,
        gamma=gamma,
        exclude_target=exclude_target,
        normalize=normalize_proxies,
        drop_similar_negatives=limits,
        logit_weights=logit_weights,
    )
    differentiable = torch.is_grad_enabled() and (embeddings.requires_grad or rows.requires_grad)
    operand = operand_dtype(dtype, embeddings, autocast=True, lanes=True)
    settings, eager = Settings(differentiable, backend or "auto", operand), in_eager_mode(embeddings)
    if not differentiable and eager:
        return ClassLSE(*sweep_values(embeddings, rows, problem, settings, seen=seen))
    if not eager and seen is not None:
        raise RuntimeError("torch.func, and graphs without values, see no classes: observe a step in eager mode")
    if not eager:
        refuse_update(update, "torch.func, or a graph without values,", "compute the loss in eager mode")
    names, numbers, tensors = flatten(problem)
    results = apply_function(ClassSweep, embeddings, rows, *settings, keep, update, seen, names, numbers, *tensors)
    return ClassLSE(*results[:2])


def _check_several(labels: Tensor, num_classes: int, elsewhere: bool) -> Tensor:
    """Labels (B, K) with ELSEWHERE for ABSENT; distinct, and unless ``elsewhere`` in range."""
    absent = labels == ABSENT
    if not elsewhere:
        check_label_range(labels.masked_fill(absent, 0), num_classes)
    check_distinct(labels)
    return labels.masked_fill(absent, ELSEWHERE)


def _check_vectors(
    embeddings: Tensor,
    num_classes: int,
    dtype: torch.dtype,
    scale: float | Tensor,
    bias: Tensor | None,
    name_of_bias: str = "bias",
) -> tuple[Tensor, Tensor | None]:
    """Scale as () or (C,) and bias, contiguous, since kernels read them by address, and in the compute type."""
    for name, value in (("scale", scale), (name_of_bias, bias)):
        if not isinstance(value, Tensor):
            continue
        if name == name_of_bias or value.dim():
            check_vector(name, value, num_classes)
        if value.requires_grad:
            raise ValueError(f"{name} requires a gradient, and class_lse has none for it: pass {name}.detach()")
    if not isinstance(scale, Tensor):
        if not -math.inf < scale < math.inf:
            raise ValueError(f"scale must be finite, got {scale}")
        scale = embeddings.new_full((), scale, dtype=dtype)
    check_same_device(embeddings=embeddings, scale=scale, **{name_of_bias: bias})
    return scale.to(dtype).contiguous(), None if bias is None else bias.to(dtype).contiguous()


def _check_pooling(pooling: str, gamma: float | None, centers: int) -> float:
    """The temperature; 1 where it has no part."""
    check_choice(POOLINGS, pooling=pooling)
    if pooling == "none" and centers > 1:
        raise ValueError(f"proxies have {centers} sub-centres a class: choose pooling='max' or pooling='softmax'")
    if pooling != "softmax":
        if gamma is not None:
            raise ValueError(f"gamma={gamma} is the temperature of pooling='softmax', and pooling is {pooling!r}")
        return 1.0
    if gamma is None or not (0 < gamma < math.inf):
        raise ValueError(f"pooling='softmax' needs a finite gamma > 0, got {gamma}")
    return float(gamma)
