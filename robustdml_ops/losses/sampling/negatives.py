"""Sampled negatives: in each step a loss meets the classes of its batch and a random sample of the others."""

from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.engine.proxy_update import ProxyUpdate, UpdateOfRows, refuse_update
from robustdml_ops.engine.validation import check_label_range, check_number
from robustdml_ops.losses.sampling.drawn_classes import Drawn, draw_classes
from robustdml_ops.losses.sampling.row_gather import Receiver, take_rows


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
