"""The optimisers of a run: AdamW, and one within the sweep for proxies that a method turns by radians."""

from typing import Any

import torch
from torch import nn

from robustdml.world import load_optimizer, whole
from robustdml_ops.optim import ProxyAdagrad


class Optimizers:
    """All optimisers of a run as one."""

    def __init__(
        self, layer: nn.Module, backbone: nn.Module, loss: nn.Module, weight_decay: float, proxy_radians: float | None
    ) -> None:
        groups: list[dict[str, Any]] = [{"params": list(part.parameters())} for part in (layer, backbone)]
        if proxy_radians is None:
            groups.append({"params": list(loss.parameters()), "weight_decay": 0.0})
        # One pass over each parameter: with many classes the default costs as much as the loss.
        self.network = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
        self.proxies = None if proxy_radians is None else ProxyAdagrad(loss, lr=proxy_radians, radians=True)

    def begin(self, rates: list[float]) -> None:
        """Clear gradients, and set the rates: an optimiser within the sweep takes its step in backward."""
        groups = [*self.network.param_groups, *(self.proxies.param_groups if self.proxies is not None else [])]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self.network.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Take the step."""
        self.network.step()
        if self.proxies is not None:
            self.proxies.step()

    def state(self) -> dict[str, Any]:
        """State by the names that a run stores it under."""
        state = {"optimizer": whole(self.network.state_dict())}
        return state if self.proxies is None else {**state, "proxy_optimizer": whole(self.proxies.state_dict())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what a run has stored."""
        load_optimizer(self.network, state["optimizer"])
        if self.proxies is not None:
            self.proxies.load_state_dict(state["proxy_optimizer"])
