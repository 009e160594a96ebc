"""Proxy-Anchor over very many classes with row-wise Adagrad in its sweep: ``python -m bench.many_classes C D``.

Prints loss, seconds and peak memory of each of a few steps: the proxies are all that is of size C·D.
"""

import resource
import sys
import time

import torch

from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad

B, STEPS, CLASSES = 256, 6, 64


def main() -> None:
    """Train on samples of a few classes, far from each other among the C."""
    C, D = map(int, sys.argv[1:])
    torch.manual_seed(0)
    loss_function = ProxyAnchorLoss(C, D)
    optimizer = ProxyAdagrad(loss_function, lr=0.1)
    centers = torch.randn(CLASSES, D)
    for step in range(STEPS):
        drawn = torch.randint(CLASSES, (B,))
        embeddings = (centers[drawn] + 0.3 * torch.randn(B, D)).requires_grad_()
        start = time.perf_counter()
        loss = loss_function(embeddings, drawn * (C // CLASSES))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"step {step}: loss {float(loss.detach()):.3f}, {seconds:.2f} s, {peak:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
