"""Cases of the self-check for whole steps of losses: value and gradients, as a plan makes them where there is one.

The plans of each primitive have a table of backends of their own: a wrong step takes the general way, whose ops may be
right.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.fused_plan import STEPS as FUSED
from robustdml_ops.losses.adaface import AdaFaceLoss
from robustdml_ops.losses.arcface import ArcFaceLoss
from robustdml_ops.losses.contrastive import ContrastiveLoss
from robustdml_ops.losses.info_nce import InfoNCELoss
from robustdml_ops.losses.loading import load_class_matrix
from robustdml_ops.losses.multi_similarity import MultiSimilarityLoss
from robustdml_ops.losses.normalized_softmax import NormalizedSoftmaxLoss
from robustdml_ops.losses.ntxent import NTXentLoss
from robustdml_ops.losses.proxy_anchor import ProxyAnchorLoss
from robustdml_ops.losses.proxy_nca import ProxyNCALoss
from robustdml_ops.losses.sigmoid import SigmoidLoss
from robustdml_ops.losses.supcon import SupConLoss
from robustdml_ops.ops.anchor.gpu_plan import STEPS as ANCHOR
from robustdml_ops.ops.classes.gpu_plan import STEPS as CLASSES
from robustdml_ops.ops.pairs.gpu_plan import STEPS as PAIRS
from robustdml_ops.ops.self_check_cases import Inputs, Op, Ops, register_cases


def _with_classes(make: Callable[..., Any], **settings: Any) -> Op:
    """A loss with the class matrix P: its value, and the gradients of X and of the matrix."""

    def step(inputs: Inputs, backend: str) -> list[Tensor]:
        loss = make(inputs.C, inputs.D, backend=backend, **settings).to(inputs.P.device, inputs.P.dtype)
        loss.first_steps = None  # which warns of bfloat16 parameters
        load_class_matrix(loss, inputs.P.detach())
        value = loss(inputs.X, inputs.labels)
        return [value.detach(), *torch.autograd.grad(value, (inputs.X, getattr(loss, loss.matrix_name)))]

    return step


def _of_pairs(make: Callable[..., Any], bank: bool = False, **settings: Any) -> Op:
    """Of a batch with itself, or with rows of P."""

    def of_pairs(inputs: Inputs, backend: str) -> Tensor:
        others = (None, inputs.P, torch.arange(inputs.C, device=inputs.P.device) % 7) if bank else ()
        loss: Tensor = make(backend=backend, **settings)(inputs.X, inputs.labels % 7, *others)
        return loss

    return of_pairs


def _of_towers(make: Callable[..., Any]) -> Op:
    """Of the batch with as many rows of P; the gradients of the parameters, too."""

    def step(inputs: Inputs, backend: str) -> list[Tensor]:
        loss = make(backend=backend).to(inputs.P.device, inputs.values.dtype)
        value = loss(inputs.X, inputs.P[: inputs.B])
        return [value, *torch.autograd.grad(value, tuple(loss.parameters()), retain_graph=True)]

    return step


_OF_ANCHORS: Ops = {"ProxyAnchorLoss": _with_classes(ProxyAnchorLoss)}
_OF_CLASSES: Ops = {
    "NormalizedSoftmaxLoss": _with_classes(NormalizedSoftmaxLoss),
    "ProxyNCALoss": _with_classes(ProxyNCALoss, softmax_scale=8.0),
    "ArcFaceLoss": _with_classes(ArcFaceLoss, scale=16.0),
    "ArcFaceLoss, smoothed": _with_classes(ArcFaceLoss, scale=16.0, label_smoothing=0.1),
    "AdaFaceLoss": _with_classes(AdaFaceLoss, scale=16.0),
}
# The kernel serves bfloat16; the doctor names the steps by those of float32.
_FUSED: Ops = {**_OF_ANCHORS, **{name: _OF_CLASSES[name] for name in ("NormalizedSoftmaxLoss", "ProxyNCALoss")}}
_OF_PAIRS: Ops = {
    "ContrastiveLoss": _of_pairs(ContrastiveLoss),
    "MultiSimilarityLoss": _of_pairs(MultiSimilarityLoss),
    "SupConLoss": _of_pairs(SupConLoss),
    "NTXentLoss": _of_pairs(NTXentLoss),
    "InfoNCELoss": _of_towers(InfoNCELoss),
    "SigmoidLoss": _of_towers(SigmoidLoss),
}
_OF_A_BANK: Ops = {
    "ContrastiveLoss of a bank": _of_pairs(ContrastiveLoss, bank=True, distance="cosine"),
    "MultiSimilarityLoss of a bank": _of_pairs(MultiSimilarityLoss, bank=True, beta=10.0),
}

register_cases("anchor_steps", ANCHOR, *[_OF_ANCHORS] * 3)
register_cases("classes_steps", CLASSES, *[_OF_CLASSES] * 3)
register_cases("fused_steps", FUSED, _FUSED, {}, _FUSED)
register_cases("pairs_steps", PAIRS, {**_OF_PAIRS, **_OF_A_BANK}, _OF_PAIRS, _OF_A_BANK)
