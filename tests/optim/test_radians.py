"""Rates in radians of AdamW and SGD: steps on the rows of length 1."""

import pytest
import torch

from robustdml_ops.optim import ProxyAdamW, ProxySGD
from tests.optim.test_optimizers import DRAWN, batch, close, pair

TURNING = {
    "AdamW": (ProxyAdamW, torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-3}),
    "SGD": (ProxySGD, torch.optim.SGD, {}),
    "SGD, momentum": (ProxySGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    "SGD, Nesterov": (ProxySGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
}


@pytest.mark.parametrize(
    ("name", "drawn"), [("proxy-anchor", {}), ("normalized-softmax", {}), ("soft-triple", {}), ("proxy-anchor", DRAWN)]
)
@pytest.mark.parametrize("rule", TURNING)
def test_steps_in_radians_are_those_of_torch_on_rows_of_length_1(small_chunks, rule, name, drawn, backend):
    """torch's step from 0 by |p| (g + λ p), taken |p| times as far, and AdamW's by 1/√D of it."""
    kind, other, settings = TURNING[rule]
    decay = 0.1 if not drawn else 0.0
    ours, theirs, _, Q = pair(name, backend, **drawn)
    rate = 0.05 if kind is ProxyAdamW else 0.5
    optimizer = kind(ours, lr=rate, weight_decay=decay, radians=True, **settings)
    moved = torch.nn.Parameter(torch.zeros_like(theirs._class_matrix()))
    plain = other([moved], lr=rate, weight_decay=0.0, **settings)
    for _ in range(1 if drawn else 3):
        X, labels = batch()
        Q.grad = None
        theirs(X, labels).backward()
        P = theirs._class_matrix().detach().clone()
        G = Q.grad if Q.shape == P.shape else Q.grad.t()
        lengths = P.norm(dim=1, keepdim=True)
        moved.data.zero_()
        moved.grad = lengths * (G if kind is ProxyAdamW else G + decay * P)
        plain.step()
        factor, kept = (lengths / P.shape[1] ** 0.5, 1 - rate * decay) if kind is ProxyAdamW else (lengths, 1)
        ours(X, labels).backward()
        optimizer.step()
        with torch.no_grad():
            theirs._class_matrix().copy_(kept * P + factor * moved)
        close(ours._class_matrix(), theirs._class_matrix().detach())
