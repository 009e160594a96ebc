"""Gradient descent with momentum within the sweep."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from robustdml_ops.optim.optimizer import Losses, ProxyOptimizer, check_settings


class ProxySGD(ProxyOptimizer):
    """``torch.optim.SGD`` on the proxies of a loss, one chunk at a time while it is in cache.

        g ← g + λ p,    m ← μ m + (1 − d) g (in the first step m ← g),    p ← p − η m

    Nesterov's form takes p ← p − η (g + μ m), and without momentum there is no m: p ← p − η g.

    m is ``state[proxies]["momentum_buffer"]``, as in torch.optim.SGD.

    Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in deep learning", ICML
    2013, with the momentum as PyTorch's documentation of SGD has it.

    Parameters
    ----------
    losses, scale, moments, seed
        As in :class:`~robustdml_ops.optim.ProxyAdamW`; so are errors and memory.
    lr, momentum, dampening, weight_decay, nesterov
        η, μ, d, λ, and whether Nesterov's form is taken, which needs a momentum and no dampening.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import NormalizedSoftmaxLoss
    >>> from robustdml_ops.optim import ProxySGD
    >>> loss_function = NormalizedSoftmaxLoss(num_classes=1000, embedding_size=64)
    >>> optimizer = ProxySGD(loss_function, lr=0.1, momentum=0.9)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    >>> optimizer.step()
    """

    kind: ClassVar[str] = "sgd"
    moment_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        losses: Losses,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        scale: float = 1.0,
        moments: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(losses, scale, {**settings, "nesterov": nesterov, "moments": moments, "seed": seed})

    def _check(self, group: dict[str, Any]) -> None:
        check_settings(group, momentum=group["momentum"], dampening=group["dampening"])
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError(
                f"nesterov=True needs a momentum above 0 and dampening=0, got momentum={group['momentum']}, "
                f"dampening={group['dampening']}"
            )

    def _moments(self, group: dict[str, Any], parameter: Tensor, rows: int) -> dict[str, Tensor]:
        return {} if group["momentum"] == 0 else super()._moments(group, parameter, rows)

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        """The formula above."""
        g, lr = G + group["weight_decay"] * P, float(group["lr"])
        if not moments:
            return (P - lr * g,)
        momentum = group["momentum"]
        m = g if step == 1 else momentum * moments[0] + (1 - group["dampening"]) * g
        return P - lr * (g + momentum * m if group["nesterov"] else m), m

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        """The settings by their native names."""
        numbers = {name: float(group[name]) for name in ("lr", "weight_decay", "momentum", "dampening")}
        return {**numbers, "nesterov": bool(group["nesterov"]), "first_step": step == 1}
