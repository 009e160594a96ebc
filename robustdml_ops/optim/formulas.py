"""The optimisers by their formulas: AdamW, gradient descent with momentum, and row-wise Adagrad, one number a class."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from robustdml_ops.optim.optimizer import Losses, ProxyOptimizer, check_settings
from robustdml_ops.optim.step import widened


def _lengths(P: Tensor) -> Tensor:
    """|p| of rows (c, D), (c, 1)."""
    return P.square().sum(1, keepdim=True).sqrt()


class ProxyAdamW(ProxyOptimizer):
    """``torch.optim.AdamW`` on the proxies of a loss, one chunk at a time while it is in cache.

        m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²
        p ← (1 − η λ) p − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)

    With ``radians`` the step is that on the row of length 1, by η/√D an element: g is multiplied by |p|, and the
    second term of p by |p|/√D. The first step then turns a row by about η radians, whatever its length.

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
    radians : bool
        Whether η is an angle.
    scale : float
        dL/dloss, where L is the number whose backward is called; another factor raises. It may be set before each loss.
        A step has this factor; that of a loss scaler is given as ``scaler`` instead.
    scaler : torch.amp.GradScaler, optional
        Scaler of the loss, for float16: steps are divided by its factor, gradients of the embeddings have it, and
        ``scaler.step(optimizer)`` takes the step as that of an optimiser of torch. An upstream gradient with NaN or inf
        skips the step of a loss over classes, and the scaler is told.
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
        radians: bool = False,
        scale: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        moments: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "radians": radians}
        super().__init__(losses, scale, scaler, {**settings, "moments": moments, "seed": seed})

    def _check(self, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        check_settings(group, **{"betas[0]": beta1, "betas[1]": beta2})

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        beta1, beta2 = group["betas"]
        settings, turn = self.native_settings(group, step), None
        if group["radians"]:
            turn = _lengths(P)
            G = G * turn
        m = torch.lerp(moments[0], G, 1 - beta1)
        v = (moments[1] * beta2).addcmul_(G, G, value=1 - beta2)
        denominator = (v.sqrt() * settings["inverse_root"]).add_(group["eps"])
        decayed = P * (1 - float(group["lr"]) * group["weight_decay"])
        numerator = m if turn is None else m * (turn / math.sqrt(P.shape[1]))
        return decayed.addcdiv_(numerator, denominator, value=-settings["step_size"]), m, v

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        (beta1, beta2), lr = group["betas"], float(group["lr"])
        return {
            "lr": lr,
            "weight_decay": float(group["weight_decay"]),
            "eps": float(group["eps"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "step_size": lr / (1 - beta1**step),
            "inverse_root": 1 / math.sqrt(1 - beta2**step),
            "radians": bool(group["radians"]),
        }


class ProxySGD(ProxyOptimizer):
    """``torch.optim.SGD`` on the proxies of a loss, one chunk at a time while it is in cache.

        g ← g + λ p,    m ← μ m + (1 − d) g (in the first step m ← g),    p ← p − η m

    Nesterov's form takes p ← p − η (g + μ m), and without momentum there is no m: p ← p − η g. Where the
    momentum is set later, m starts at 0.

    With ``radians`` the step is that on the row of length 1: g is multiplied by |p|, and so is the step. A row turns as
    far as one of length 1, whose gradient is |p| g; the scale of the loss still counts.

    m is ``state[proxies]["momentum_buffer"]``, as in torch.optim.SGD.

    Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in deep learning", ICML
    2013, with the momentum as PyTorch's documentation of SGD has it.

    Parameters
    ----------
    losses, scale, scaler, moments, seed
        As in :class:`~robustdml_ops.optim.ProxyAdamW`; so are errors and memory.
    lr, momentum, dampening, weight_decay, nesterov
        η, μ, d, λ, and whether Nesterov's form is taken, which needs a momentum and no dampening.
    radians : bool
        Whether rows of any length turn as one of length 1.

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
        radians: bool = False,
        scale: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        moments: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        flags = {"nesterov": nesterov, "radians": radians}
        super().__init__(losses, scale, scaler, {**settings, **flags, "moments": moments, "seed": seed})

    def _check(self, group: dict[str, Any]) -> None:
        check_settings(group, momentum=group["momentum"], dampening=group["dampening"])
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError(
                f"nesterov=True needs a momentum above 0 and dampening=0, got momentum={group['momentum']}, "
                f"dampening={group['dampening']}"
            )

    def moments_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return () if group["momentum"] == 0 else self.moment_names

    def _saved(self, state: Mapping[str, Any], needed: Mapping[str, Tensor]) -> Mapping[str, Any]:
        # Before its first step with a momentum a state has no momentum buffer, and torch's never has a step.
        begun = state.get("momentum_buffer") is not None
        zeros = {} if begun else {name: torch.zeros_like(moment) for name, moment in needed.items()}
        return {"step": float(begun), **state, **zeros}

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        g = G + group["weight_decay"] * P
        lr: float | Tensor = float(group["lr"])
        if group["radians"]:
            turn = _lengths(P)
            g, lr = g * turn, lr * turn
        if not moments:
            return (P - lr * g,)
        momentum = group["momentum"]
        m = g if step == 1 else momentum * moments[0] + (1 - group["dampening"]) * g
        return P - lr * (g + momentum * m if group["nesterov"] else m), m

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        numbers = {name: float(group[name]) for name in ("lr", "weight_decay", "momentum", "dampening")}
        flags = {name: bool(group[name]) for name in ("nesterov", "radians")}
        return {**numbers, **flags, "first_step": step == 1}


class ProxyAdagrad(ProxyOptimizer):
    """Row-wise Adagrad on the proxies of a loss: a class has one rate, which falls as its gradients add up.

        g ← g + λ p,    a ← a + mean_d g_d²,    p ← p − η / (√a + ε) · g
        with radians:   a ← a + |p|² |g|²,      p ← p − η |p|² / (√a + ε) · g

    With ``radians`` the step is that on the row of length 1: the first one turns a row by η radians at most, and later
    ones by less, whatever the length of the rows and the scale of the loss. Without, the first turns it by η √D/|p|.
    The state is ``state[proxies]["sum"]``, (C,), a number for each row (for SoftTriple each centre): at C = 10⁷, D = 64
    it takes 40 MB, and AdamW's moments 5 GB.

    Source: FBGEMM, ``EXACT_ROWWISE_ADAGRAD`` with weight decay in the L2 form; the idea is Duchi, Hazan, Singer,
    "Adaptive Subgradient Methods", JMLR 2011.

    Parameters
    ----------
    losses, scale, scaler
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
        radians: bool = False,
        scale: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(losses, scale, scaler, {**settings, "eps": eps, "radians": radians})

    def _check(self, group: dict[str, Any]) -> None:
        check_settings(group)
        if group["eps"] == 0 and group["initial_accumulator_value"] == 0:
            raise ValueError(
                "eps must be above 0 where sums start at 0: a row without a gradient would be divided by 0"
            )

    def _moments(self, group: Mapping[str, Any], parameter: Tensor, rows: int) -> dict[str, Tensor]:
        return {"sum": parameter.new_full((rows,), group["initial_accumulator_value"], dtype=widened(parameter.dtype))}

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        g, rate = G + group["weight_decay"] * P, float(group["lr"])
        if group["radians"]:
            length = P.square().sum(1)
            total = moments[0] + g.square().sum(1) * length
            return P - (rate * length / (total.sqrt() + group["eps"]))[:, None] * g, total
        total = moments[0] + g.square().mean(1)
        return P - (rate / (total.sqrt() + group["eps"]))[:, None] * g, total

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        numbers = {name: float(group[name]) for name in ("lr", "weight_decay", "eps")}
        return {**numbers, "radians": bool(group["radians"])}
