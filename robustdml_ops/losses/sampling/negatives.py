"""Sampled negatives: in each step a loss meets the classes of its batch and a random sample of the others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.engine.gradient_memory import gradient_buffer
from robustdml_ops.engine.proxy_update import ProxyUpdate, UpdateOfRows, refuse_update
from robustdml_ops.engine.rows.backend import by_columns, rows_at
from robustdml_ops.engine.validation import check_label_range, check_number
from robustdml_ops.losses.sampling.drawn_classes import Drawn, draw_classes

# Takes rows (n,) int64, distinct, and dL/drows (n, D) in the type of the matrix.
Receiver = Callable[[Tensor, Tensor], None]


class Negatives(nn.Module):
    """Draws the classes of each step, and remembers which step it is."""

    state: Tensor

    def __init__(self, share: float, seed: int = 0) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("state", torch.tensor([seed, 0]))
        self.receiver: Receiver | None = None

    def draw(self, labels: Tensor, num_classes: int, here: tuple[int, int] | None = None) -> Drawn:
        """Draw the classes of the next step."""
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "torch.utils.checkpoint runs the loss again in the backward pass, where it would draw other negatives: "
                "leave the loss out of the checkpoint, or negative_share out of the loss"
            )
        check_label_range(labels, num_classes)
        drawn = draw_classes(labels, num_classes, self.share, self.state, here)
        with torch.no_grad():
            self.state[1] += 1
        return drawn

    def rows(self, proxies: Tensor, drawn: Drawn, update: ProxyUpdate | None) -> tuple[Tensor, ProxyUpdate | None]:
        """Rows of the drawn classes; with an update all rows, and an update of the drawn ones."""
        rows = drawn.classes
        if proxies.dim() == 3:
            H = proxies.shape[1]
            rows = (rows[:, None] * H + torch.arange(H, device=rows.device)).flatten()
        if update is not None:
            if self.receiver is not None:
                refuse_update(update, "a loss whose negatives have a receiver", "set negatives.receiver to None")
            return proxies, UpdateOfRows(update, rows)
        if proxies.dim() == 2:
            return take_rows(proxies, rows, self.receiver), None
        return take_rows(proxies.flatten(0, 1), rows, self.receiver).view(-1, *proxies.shape[1:]), None

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"share={self.share}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        state_dict.setdefault(f"{prefix}state", self.state)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def negatives_of(options: Any) -> Negatives | None:
    """Take ``negative_share`` and ``negative_seed`` out of a loss's dictionary of options; None: all classes."""
    share, seed = options.pop("negative_share", 1.0), options.pop("negative_seed", 0)
    check_number("negative_share", share)
    if not 0 < share <= 1:
        raise ValueError(f"negative_share must lie in (0, 1], got {share}: 1 takes all classes")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"negative_seed must be an integer, got {seed!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"negative_seed must not be negative, nor 2^63 or more, got {seed}")
    return None if share == 1 else Negatives(float(share), seed)


def take_rows(matrix: Tensor, rows: Tensor, receiver: Receiver | None = None) -> Tensor:
    """Distinct rows (n, D) of a matrix (C, D); a ``receiver`` gets their gradient in place of the matrix."""
    taken: Tensor = TakenRows.apply(matrix, rows, receiver)  # type: ignore[no-untyped-call]
    return taken


class TakenRows(torch.autograd.Function):
    """Autograd of :func:`take_rows`."""

    @staticmethod
    def forward(matrix: Tensor, rows: Tensor, receiver: Receiver | None) -> Tensor:
        """Of a matrix (C, D)."""
        return rows_at(matrix, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the rows, and the matrix for its layout."""
        ctx.save_for_backward(*inputs[:2])
        ctx.receiver = inputs[2]

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, None, None]:
        """The dense gradient, or none."""
        matrix, rows = ctx.saved_tensors
        if ctx.receiver is not None:
            if torch.is_grad_enabled():
                raise RuntimeError("a receiver's rows have no second derivative: leave create_graph=True out")
            ctx.receiver(rows, G)
            return None, None, None
        if torch.is_grad_enabled():  # a graph of the gradient
            return torch.zeros_like(matrix).index_copy(0, rows, G), None, None
        buffer = gradient_buffer(matrix).zero_()
        if by_columns(matrix):
            buffer.t().index_copy_(1, rows, G.t())
        else:
            buffer.index_copy_(0, rows, G)
        return buffer, None, None
