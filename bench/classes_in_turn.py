"""A step of Proxy-Anchor over more classes than fit into memory: ``python -m bench.classes_in_turn C D B W``.

Each of W shards is made, takes its step with row-wise Adagrad and is deleted, one after the other; the loss is the sum
over shards, the same for every W. Prints the time and memory of a shard, and the memory that arithmetic predicts.
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

PIECES = 64  # each with its own seed, so that the proxies do not depend on the number of shards


class InTurn(OneProcess):
    """A shard of the classes ``first`` to ``last``, whose sums stay local."""

    divided = True

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def range(self) -> tuple[int, int]:
        """The classes of this shard."""
        return self.first, self.last

    def labels(self, labels: Tensor) -> Tensor:
        """Local class numbers; ELSEWHERE for classes of other shards."""
        here = (labels >= self.first) & (labels < self.last)
        return torch.where(here, labels - self.first, ELSEWHERE)


def fill(proxies: Tensor, first: int, C: int) -> None:
    """Draw the proxies of the classes from ``first`` on, piece by piece."""
    each = C // PIECES
    for place in range(0, len(proxies), each):
        generator = torch.Generator().manual_seed((first + place) // each)
        torch.randn(each, proxies.shape[1], generator=generator, out=proxies[place : place + each])


def peak() -> float:
    """Peak memory of the process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Step on each shard in turn."""
    C, D, B, W = map(int, sys.argv[1:5])
    if C % PIECES or PIECES % W:
        raise SystemExit(f"C must be a multiple of {PIECES}, and W a divisor of it")
    torch.manual_seed(0)
    X, labels = torch.randn(B, D, requires_grad=True), torch.randint(C, (B,))
    small = ProxyAnchorLoss(640, D)  # warm-up: workspaces of the libraries
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
