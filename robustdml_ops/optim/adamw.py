"""AdamW within the sweep, Loshchilov and Hutter 2019."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from robustdml_ops.optim.optimizer import Losses, ProxyOptimizer, check_settings


class ProxyAdamW(ProxyOptimizer):
    """``torch.optim.AdamW`` on the proxies of a loss, one chunk at a time while it is in cache.

        m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²
        p ← (1 − η λ) p − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)

    No gradient of the size of the proxies exists. m and v are ``state[proxies]["exp_avg"]`` and
    ``["exp_avg_sq"]`` as in torch.optim.AdamW, whose ``state_dict`` this one loads, and back. TypeError or ValueError
    for what is no loss with proxies of float32, float64 or bfloat16, a setting out of range, or proxies of another
    optimiser; docs/large-classes.md lists what else a step within the sweep can't be combined with.

    Source: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2.

    Parameters
    ----------
    losses : loss, or list of losses or of dict
        Losses of :mod:`robustdml_ops.losses` whose proxies are trained, or ``{"loss": loss, "lr": …}`` for a group
        with settings of its own. Train other parameters, of the model or of the loss, with another optimiser.
    lr, betas, eps, weight_decay
        η, (β₁, β₂), ε and λ. Schedulers set ``lr``; the sweep reads it at its step.
    scale : float
        dL/dloss, where L is the number whose backward is called; another factor raises. It may be set before each loss.
    moments : torch.float32 or torch.bfloat16
        Type of m and v; with proxies of float64 float32 stands for float64. bfloat16 is rounded at random and halves
        the memory of float32.
    seed : int
        Seed of the rounding of bfloat16 moments and proxies: the same seed gives the same bits.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> from robustdml_ops.optim import ProxyAdamW
    >>> loss_function = ProxyAnchorLoss(num_classes=1000, embedding_size=64)
    >>> optimizer = ProxyAdamW(loss_function, lr=1e-2)
    >>> before = loss_function.proxies.detach().clone()
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    >>> optimizer.step()
    >>> loss_function.proxies.grad is None, torch.equal(before, loss_function.proxies)
    (True, False)
    """

    kind: ClassVar[str] = "adamw"
    moment_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        losses: Losses,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        scale: float = 1.0,
        moments: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(losses, scale, {**settings, "moments": moments, "seed": seed})

    def _check(self, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        check_settings(group, **{"betas[0]": beta1, "betas[1]": beta2})

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        """The formula above."""
        beta1, beta2 = group["betas"]
        settings = self.native_settings(group, step)
        m = torch.lerp(moments[0], G, 1 - beta1)
        v = (moments[1] * beta2).addcmul_(G, G, value=1 - beta2)
        denominator = (v.sqrt() * settings["inverse_root"]).add_(group["eps"])
        kept = P * (1 - float(group["lr"]) * group["weight_decay"])
        return kept.addcdiv_(m, denominator, value=-settings["step_size"]), m, v

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        """The settings by their native names."""
        (beta1, beta2), lr = group["betas"], float(group["lr"])
        return {
            "lr": lr,
            "weight_decay": float(group["weight_decay"]),
            "eps": float(group["eps"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "step_size": lr / (1 - beta1**step),
            "inverse_root": 1 / math.sqrt(1 - beta2**step),
        }
