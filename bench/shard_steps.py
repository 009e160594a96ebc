"""Proxy-Anchor and its optimiser with classes divided among gloo processes: ``python -m bench.shard_steps C D b W``.

Each of W processes on this machine, of one thread each, gives b samples. Prints what each of them holds, the bytes that
it hands to the collectives in a step beside those of docs/scaling.md, and the time of a step beside that of one process
with W threads and all samples.
"""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh

from bench.gloo_world import measured, run_processes
from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdamW


def predicted(samples: int, size: int, processes: int) -> int:
    """Header, embeddings, labels, the sum, and gradients of all embeddings, as docs/scaling.md has them."""
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


def main() -> None:
    """Run the processes, and then one with all samples."""
    C, D, samples, processes = map(int, sys.argv[1:5])
    for rank, (seconds, held, handed) in enumerate(run_processes(steps, processes, C, D, samples)):
        print(
            f"rank {rank}: proxies and moments {held / 1e6:.1f} MB, {handed} bytes a step (predicted "
            f"{predicted(samples, D, processes)}), {seconds * 1e3:.0f} ms"
        )
    torch.set_num_threads(processes)
    seconds, held, _ = steps(C, D, processes * samples, 1)
    print(f"one process, {processes} threads: proxies and moments {held / 1e6:.1f} MB, {seconds * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
