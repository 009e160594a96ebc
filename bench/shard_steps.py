"""Proxy-Anchor and its optimiser with C classes sharded over W processes: ``python -m bench.shard_steps C D b W``.

Prints for each process, which brings b samples a step, its memory, its bytes to the collectives (and those that
docs/large-classes.md predicts) and its time; then the time of one process with W threads and all samples.
"""

import torch
from torch.distributed.device_mesh import init_device_mesh

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdamW

from .gloo_world import compare, measured


def predicted(samples: int, size: int, processes: int) -> int:
    """Header, embeddings, labels, the sum, and gradients of all embeddings, as docs/large-classes.md has them."""
    return 24 + samples * size * 4 + 8 * samples + 4 + processes * samples * size * 4


def steps(C: int, D: int, samples: int, processes: int) -> tuple[float, int, int]:
    """Median of seconds a step, bytes of proxies and moments, and bytes handed to the collectives in a step."""
    with torch.device("meta" if processes > 1 else "cpu"):
        loss_function = ProxyAnchorLoss(C, D)
    if processes > 1:
        loss_function = shard_classes(loss_function, init_device_mesh("cpu", (processes,)))
    optimizer = ProxyAdamW(loss_function, lr=1e-2)
    kept = [loss_function.proxies, *(optimizer.state[loss_function.proxies][name] for name in optimizer.moment_names)]
    held = sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in kept)
    X, labels = torch.randn(samples, D, requires_grad=True), torch.randint(C, (samples,))

    def step() -> None:
        X.grad = None
        loss_function(X, labels).backward()
        optimizer.step()

    seconds, handed = measured(step)
    return seconds, held, handed


if __name__ == "__main__":
    compare(steps, predicted, "proxies and moments")
