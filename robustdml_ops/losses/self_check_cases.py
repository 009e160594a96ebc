"""Cases of the self-check for whole steps of losses: value and gradients, as a plan makes them where there is one.

A plan with kernels of its own has a table of the backends that run it, and chooses one by ``backends.dispatch.choose``.
That table stands below in place of the copy of its primitive's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.losses.adaface import AdaFaceLoss
from robustdml_ops.losses.arcface import ArcFaceLoss
from robustdml_ops.losses.contrastive import ContrastiveLoss
from robustdml_ops.losses.loading import load_class_matrix
from robustdml_ops.losses.multi_similarity import MultiSimilarityLoss
from robustdml_ops.losses.normalized_softmax import NormalizedSoftmaxLoss
from robustdml_ops.losses.proxy_anchor import ProxyAnchorLoss
from robustdml_ops.losses.proxy_nca import ProxyNCALoss
from robustdml_ops.losses.supcon import SupConLoss
from robustdml_ops.ops.anchor.sweep import BACKENDS as ANCHOR
from robustdml_ops.ops.classes.backends import BACKENDS as CLASSES
from robustdml_ops.ops.pairs.sweep import BACKENDS as PAIRS
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


def _of_pairs(make: Callable[..., Any], **settings: Any) -> Op:
    return lambda inputs, backend: make(backend=backend, **settings)(inputs.X, inputs.labels % 7)


_OF_ANCHORS: Ops = {"ProxyAnchorLoss": _with_classes(ProxyAnchorLoss)}
_OF_CLASSES: Ops = {
    "NormalizedSoftmaxLoss": _with_classes(NormalizedSoftmaxLoss),
    "ProxyNCALoss": _with_classes(ProxyNCALoss, softmax_scale=8.0),
    "ArcFaceLoss": _with_classes(ArcFaceLoss, scale=16.0),
    "ArcFaceLoss, smoothed": _with_classes(ArcFaceLoss, scale=16.0, label_smoothing=0.1),
    "AdaFaceLoss": _with_classes(AdaFaceLoss, scale=16.0),
}
_OF_PAIRS: Ops = {
    "ContrastiveLoss": _of_pairs(ContrastiveLoss),
    "MultiSimilarityLoss": _of_pairs(MultiSimilarityLoss),
    "SupConLoss": _of_pairs(SupConLoss),
}

register_cases("anchor_steps", dict(ANCHOR), *[_OF_ANCHORS] * 3)
register_cases("classes_steps", dict(CLASSES), *[_OF_CLASSES] * 3)
register_cases("pairs_steps", dict(PAIRS), _OF_PAIRS, _OF_PAIRS, {})
