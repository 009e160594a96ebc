"""Row-wise Adagrad within the sweep: one number a class."""

from typing import Any, ClassVar

from torch import Tensor

from robustdml_ops.optim.optimizer import Losses, ProxyOptimizer, check_settings
from robustdml_ops.optim.step import widened


class ProxyAdagrad(ProxyOptimizer):
    """Row-wise Adagrad on the proxies of a loss: a class has one rate, which falls as its gradients add up.

        g ← g + λ p,    a ← a + mean_d g_d²,    p ← p − η / (√a + ε) · g

    The state is ``state[proxies]["sum"]``, (C,), a number for each row (for SoftTriple each centre): at C = 10⁷, D = 64
    it takes 40 MB, and AdamW's moments 5 GB.

    Source: FBGEMM, ``EXACT_ROWWISE_ADAGRAD`` with weight decay in the L2 form; the idea is Duchi, Hazan, Singer,
    "Adaptive Subgradient Methods", JMLR 2011.

    Parameters
    ----------
    losses, scale
        As in :class:`~robustdml_ops.optim.ProxyAdamW`; so are errors.
    lr, weight_decay, eps
        η, λ, and ε, which stands outside the root.
    initial_accumulator_value : float
        a before the first step.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> from robustdml_ops.optim import ProxyAdagrad
    >>> loss_function = ProxyAnchorLoss(num_classes=1000, embedding_size=64)
    >>> optimizer = ProxyAdagrad(loss_function, lr=0.1)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    >>> optimizer.step()
    """

    kind: ClassVar[str] = "adagrad"
    moment_names: ClassVar[tuple[str, ...]] = ("sum",)
    by_row: ClassVar[bool] = True

    def __init__(
        self,
        losses: Losses,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-8,
        *,
        scale: float = 1.0,
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(losses, scale, {**settings, "eps": eps})

    def _check(self, group: dict[str, Any]) -> None:
        check_settings(group)
        if group["eps"] == 0 and group["initial_accumulator_value"] == 0:
            raise ValueError(
                "eps must be above 0 where sums start at 0: a row without a gradient would be divided by 0"
            )

    def _moments(self, group: dict[str, Any], parameter: Tensor, rows: int) -> dict[str, Tensor]:
        return {"sum": parameter.new_full((rows,), group["initial_accumulator_value"], dtype=widened(parameter.dtype))}

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        """The formula above."""
        g = G + group["weight_decay"] * P
        total = moments[0] + g.square().mean(1)
        return P - (float(group["lr"]) / (total.sqrt() + group["eps"]))[:, None] * g, total

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        """The settings by their native names."""
        return {name: float(group[name]) for name in ("lr", "weight_decay", "eps")}
