"""The peer's dense code, for distances and reducers that no fused sum serves."""

import warnings
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.peer.package import PACKAGE, SubLosses, named, peer_losses


def dense_sub_losses(loss: Any, inputs: LossInputs, reason: str) -> SubLosses:
    """The peer's sub-losses of ``loss``'s settings and parameters; warns once that ``reason`` made them necessary."""
    if getattr(loss, "epsilon", None) is not None:
        raise ValueError(f"epsilon={loss.epsilon} mines by cosines, not by {named(loss.distance)}: take a miner")
    if not getattr(loss, "include_positive", True):
        raise ValueError(f"include_positive=False is of the fused sums, and {named(loss.distance)} of none of them")
    if not loss._warned:
        loss._warned = True
        warnings.warn(
            f"{type(loss).__name__} with {reason} runs in {PACKAGE}'s dense code: at its speed, and with several "
            f"matrices of {loss.dense_size} in memory",
            stacklevel=2,
        )
    embeddings, labels, indices_tuple, ref_emb, ref_labels, _ = inputs
    matrix = loss._class_matrix()
    if matrix is not None and not torch.is_autocast_enabled(embeddings.device.type):
        # The peer casts its parameters to the type of the embeddings, for good.
        embeddings = embeddings.to(matrix.dtype)
    if ref_emb is None:
        ref_emb, ref_labels = embeddings, labels
    sub_losses: SubLosses = _twin(loss).compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
    return sub_losses


def dense_logits(loss: Any, embeddings: Tensor) -> Tensor:
    """The peer's logits (B, C)."""
    if loss.matrix_name == "proxies":
        distances: Tensor = loss.distance(embeddings, loss.proxies)
        return distances
    logits: Tensor = _twin(loss).get_logits(embeddings)
    return logits


def _twin(loss: Any) -> Any:
    """The peer's loss of the same settings and parameters."""
    names = (kind.__name__ for kind in type(loss).__mro__ if hasattr(kind, "recorded"))
    name = next((name for name in names if hasattr(peer_losses, name)), None)
    if name is None:
        raise NotImplementedError(f"{PACKAGE} has no {type(loss).__name__}")
    options: dict[str, Any] = {"distance": loss.distance}
    settings = loss.recorded
    if loss._class_matrix() is not None:
        options |= {"num_classes": 1, "embedding_size": 1, "weight_init_func": lambda _: None}
        settings = (*settings, loss.matrix_name)
    twin = getattr(peer_losses, name)(**options)
    for setting in settings:
        setattr(twin, setting, getattr(loss, setting))
    if name == "SubCenterArcFaceLoss":
        twin.sub_centers = loss.sub_centers
    if name == "ProxyNCALoss":
        twin.proxy_labels = torch.arange(loss.num_classes)
    return twin
