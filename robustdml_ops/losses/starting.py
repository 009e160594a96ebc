"""Proxies that begin as embeddings: from a pass over the samples, or each when training first meets its class."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.engine.labels import check_label_range, class_labels
from robustdml_ops.engine.rows.backends import normalized
from robustdml_ops.engine.shards import check_held
from robustdml_ops.engine.validation import check_finite_embeddings, check_matrix, check_same_device, check_sizes
from robustdml_ops.losses.families.class_matrix import ClassMatrixLoss
from robustdml_ops.losses.first_embeddings import take_first


@torch.no_grad()
def start_class_matrix(
    loss: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, first_embeddings: int = 8
) -> Tensor:
    """Let the proxies of a loss begin as embeddings: each becomes the mean direction of the first few of its class.

    Every row that has met a sample has length 1 then, so that one learning rate turns the proxies of all losses by the
    same angle, see docs/large-classes.md. A class without a sample keeps its row.

    Parameters
    ----------
    loss : nn.Module
        A loss with a class matrix, such as ``ArcFaceLoss`` or ``ProxyAnchorLoss``, on any device, sharded or not. Of H
        centres of a class each begins as one embedding; further ones move the nearest centre.
    batches : iterable of (embeddings, labels)
        (B, D), floating point, any scale, and (B,) integers in 0 … C − 1, such as
        ``((model(images), labels) for images, labels in loader)``. On shards each process gives samples of its own, as
        many batches as the others.
    first_embeddings : int
        How many embeddings of a class count, the first ones. Where some labels are wrong take several.

    Returns
    -------
    Tensor
        Number of embeddings that each class has taken, (C,) int32, of the classes of this process.

    Raises
    ------
    ValueError, TypeError, IndexError
        A loss without a class matrix; shapes, types or devices that do not fit; NaN or inf; a label out of range.
        Proxies of batches before it are filled then.

    Notes
    -----
    One embedding at a time is in memory beside a batch: with n embeddings so far, p ← (p + (x − p)/(n + 1)), scaled to
    length 1. The state of an optimiser stays as it is: make the optimiser afterwards.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ArcFaceLoss, start_class_matrix
    >>> loss_function = ArcFaceLoss(num_classes=3, embedding_size=2)
    >>> embeddings = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    >>> start_class_matrix(loss_function, [(embeddings, torch.tensor([0, 2, 2]))])
    tensor([1, 0, 2], dtype=torch.int32)
    >>> loss_function.W[:, 2]
    tensor([0., 1.], grad_fn=<SelectBackward0>)
    """
    if not isinstance(loss, ClassMatrixLoss):
        raise TypeError(
            f"loss must be one with a class matrix, such as ArcFaceLoss, got {type(loss).__name__}: give the loss that "
            "is within it"
        )
    check_held(loss)
    check_sizes(first_embeddings=first_embeddings)
    matrix, shards, centers = loss._class_matrix(), loss.shards, loss.centers or 1
    if matrix.is_meta:
        raise ValueError(f"the proxies of {type(loss).__name__} are on the meta device: call shard_classes first")
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    taken = torch.zeros(len(matrix) // centers, dtype=torch.int32, device=matrix.device)

    def checked(embeddings: Any, labels: Any) -> dict[str, Tensor | None]:
        check_matrix("embeddings", embeddings, columns=loss.embedding_size)
        check_same_device(embeddings=embeddings, proxies=matrix)
        check_finite_embeddings(embeddings)
        given = class_labels(labels, embeddings)
        check_label_range(given, loss.num_classes)
        return {"embeddings": embeddings, "labels": given}

    for embeddings, labels in batches:
        own = shards.agree(partial(checked, embeddings, labels), {})
        X = normalized(shards.gather(own["embeddings"]).detach(), dtype, loss.backend)
        take_first(matrix, taken, X, shards.to_local_labels(shards.gather(own["labels"])), first_embeddings)
    if loss.first_embeddings:
        loss.taken.copy_(taken)  # the others begin in training
    return taken
