"""A step of Proxy-Anchor over more classes than are in memory at once: ``python -m bench.classes_in_turn C D B W``.

W shards, as W processes would have them, are made one after the other, each has its part of the step with row-wise
Adagrad in its sweep, and goes. The loss is the sum of their parts. Prints time and memory of each beside the arithmetic
of docs/scaling.md. With W = 1 all classes are there at once: the same proxies, and the loss that shards are to sum to.
"""

import resource
import sys
import time

import torch
from torch import Tensor

from robustdml_ops.engine.label_sets import ELSEWHERE
from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad

PIECES = 64  # in which proxies are drawn, the same ones however many shards there are


class InTurn(OneProcess):
    """Classes ``first`` to ``last``; a sum is the part of those."""

    divided = True

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def range(self) -> tuple[int, int]:
        """As of one process."""
        return self.first, self.last

    def labels(self, labels: Tensor) -> Tensor:
        """As of one process."""
        here = (labels >= self.first) & (labels < self.last)
        return torch.where(here, labels - self.first, ELSEWHERE)


def fill(proxies: Tensor, first: int, C: int) -> None:
    """Proxies of the classes from ``first`` on, a piece after the other."""
    each = C // PIECES
    for place in range(0, len(proxies), each):
        generator = torch.Generator().manual_seed((first + place) // each)
        torch.randn(each, proxies.shape[1], generator=generator, out=proxies[place : place + each])


def peak() -> float:
    """GB of the process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """All shards, one after the other."""
    C, D, B, W = map(int, sys.argv[1:5])
    if C % PIECES or PIECES % W:
        raise SystemExit(f"C must be a multiple of {PIECES}, and W a divisor of it")
    torch.manual_seed(0)
    X, labels = torch.randn(B, D, requires_grad=True), torch.randint(C, (B,))
    small = ProxyAnchorLoss(640, D)  # with what the libraries keep
    optimizer = ProxyAdagrad(small)
    small(X, labels % 640).backward()
    X.grad = None
    rows, before, total, seconds, dX = C // W, peak(), 0.0, [], torch.zeros(B, D)
    for shard in range(W):
        with torch.device("meta"):
            loss_function = ProxyAnchorLoss(rows, D)
        proxies = torch.empty(rows, D)
        fill(proxies, shard * rows, C)
        loss_function.proxies = torch.nn.Parameter(proxies)
        optimizer = ProxyAdagrad(loss_function, lr=0.1)
        loss_function.num_classes, loss_function.shards = C, InTurn(shard * rows, (shard + 1) * rows)
        start = time.perf_counter()
        loss = loss_function(X, labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        total += float(loss.detach())
        dX += X.grad
        X.grad = None
        del loss_function, optimizer, proxies, loss
    flops = 6 * B * rows * D / (sum(seconds) / W)
    print(
        f"loss {total:.9g}, |dL/dX| {float(dX.norm()):.6g}; a shard of {rows} classes: {sum(seconds) / W:.1f} s, "
        f"{flops / 1e9:.1f} GFLOP/s; proxies and sums by arithmetic {(4 * D + 4) * rows / 1e9:.3f} GB, the process at "
        f"most {peak():.3f} GB, of which {before:.3f} before"
    )


if __name__ == "__main__":
    main()
