"""Which rows of the class matrix take part in a step, and what takes their gradient."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from robustdml_ops.engine.proxy_update import ProxyUpdate, may_update, update_of
from robustdml_ops.losses.sampling.drawn_classes import Drawn


class RowsTakingPart(NamedTuple):
    """Rows of the class matrix: those of all classes, of a shard, or of the classes that were drawn for this step."""

    matrix: Tensor  # (M, D) or (M, H, D); with an update the whole shard, of which the sweep meets update.rows
    labels: Any  # (B,) int64, places among the M classes or ELSEWHERE; None: the loss takes no labels
    elsewhere: bool  # other processes own classes
    update: ProxyUpdate | None  # the optimiser's step on these rows; None: autograd has their gradient
    drawn: Drawn | None  # None: all classes here take part


def rows_taking_part(loss: Any, labels: Tensor | None) -> RowsTakingPart:
    """Rows of the class matrix of ``loss`` for a step with ``labels`` (B,)."""
    matrix, update = class_matrix(loss)
    divided = loss.shards.divided
    if loss.negatives is None or labels is None or not loss.training:
        return RowsTakingPart(matrix, None if labels is None else loss.shards.labels(labels), divided, update, None)
    drawn = loss.negatives.draw(labels, loss.num_classes, loss.shards.range())
    matrix, update = loss.negatives.rows(matrix, drawn, update)
    return RowsTakingPart(matrix, drawn.labels, divided, update, drawn)


def class_matrix(loss: Any) -> tuple[Tensor, ProxyUpdate | None]:
    """The shard of this process, (C, D) or (C, H, D), a view in plain memory; and the optimiser's step on it."""
    parameter: nn.Parameter = getattr(loss, loss.matrix_name)
    update = update_of_matrix(loss)
    rows = loss.shards.rows(parameter) if update is None else update.local
    if loss.columns and rows.dim() == 2:
        rows = rows.t()
        if loss.centers is not None:
            rows = rows.reshape(-1, loss.centers, rows.shape[1])
    return rows, update


def update_of_matrix(loss: Any) -> ProxyUpdate | None:
    """The optimiser's step on the class matrix of ``loss``; None: autograd has its gradient."""
    return update_of(getattr(loss, loss.matrix_name)) if loss.training and may_update() else None
