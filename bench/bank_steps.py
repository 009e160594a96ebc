"""The memory contrastive loss with a bank of Q rows sharded over W processes: ``python -m bench.bank_steps Q D b W``.

Prints for each process, which brings b samples a step, its memory of the bank, its bytes to the collectives (and those
that docs/large-classes.md predicts) and its time; then the time of one process with W threads and all samples.
"""

import torch
from torch.distributed.device_mesh import init_device_mesh

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import MemoryContrastiveLoss
from robustdml_ops.robust import MemoryBank

from .gloo_world import compare, measured

CLASSES, FILLED_AT_ONCE = 1000, 16_384


def predicted(samples: int, size: int, processes: int) -> int:
    """To compare: header, rows, labels, two sums and gradients. To store: header, rows, labels, keep and window."""
    gathered, B = 24 + samples * size * 4 + 8 * samples, processes * samples
    return gathered + 2 * 4 + B * size * 4 + gathered + samples + B * (size * 4 + 8)


def steps(Q: int, D: int, samples: int, processes: int) -> tuple[float, int, int]:
    """Median of seconds a step, bytes of the bank, and bytes handed to the collectives in a step."""
    loss_function, bank = MemoryContrastiveLoss(), MemoryBank(CLASSES, D, Q)
    if processes > 1:
        mesh = init_device_mesh("cpu", (processes,))
        loss_function, bank = shard_classes(loss_function, mesh), shard_classes(bank, mesh)
    for _ in range(-(-Q // (processes * FILLED_AT_ONCE))):
        rows = torch.nn.functional.normalize(torch.randn(FILLED_AT_ONCE, D))
        bank.enqueue(rows, torch.randint(CLASSES, (FILLED_AT_ONCE,)))
    kept = (bank.features, bank.labels, bank.sample_ids)
    held = sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in kept)
    X, labels = torch.randn(samples, D, requires_grad=True), torch.randint(CLASSES, (samples,))

    def step() -> None:
        X.grad = None
        loss_function(X, labels, None, bank.features, bank.labels).backward()
        bank.enqueue(torch.nn.functional.normalize(X.detach()), labels)

    seconds, handed = measured(step)
    return seconds, held, handed


if __name__ == "__main__":
    compare(steps, predicted, "bank")
