"""Data-parallel training: DDP around the network, the loss of the whole batch on every process.

    torchrun --standalone --nproc-per-node=2 examples/ddp.py

Each process has its own images. Their embeddings are gathered, differentiably, so each computes the loss of all of
them, with the same proxies: the gradient of the proxies is the same everywhere and needs no exchange. That of the
embeddings is summed over the processes on its way back and averaged by DDP, so the network's is that of one process
with the whole batch.
"""

import argparse

import torch
import torch.distributed as dist
from digits import CLASSES, digits, network, recall
from torch import Tensor
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from robustdml_ops.losses import ProxyAnchorLoss


def gathered(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings, with their graph, and labels of all processes."""
    of_each = [torch.empty_like(labels) for _ in range(dist.get_world_size())]
    dist.all_gather(of_each, labels)
    return torch.cat(all_gather(embeddings)), torch.cat(of_each)


def main(epochs: int) -> float:
    """Train, and give the recall on unseen classes."""
    dist.init_process_group("gloo")
    try:
        torch.manual_seed(0)  # the same proxies everywhere
        train, X, y = digits()
        model, loss_function = DistributedDataParallel(network()), ProxyAnchorLoss(CLASSES, 32)
        optimizer = torch.optim.AdamW(
            [{"params": model.parameters(), "lr": 1e-3}, {"params": loss_function.parameters(), "lr": 1e-1}], fused=True
        )
        sampler = DistributedSampler(train, drop_last=True)
        loader = DataLoader(train, batch_size=64 // dist.get_world_size(), sampler=sampler, drop_last=True)
        for epoch in range(epochs):
            model.train()
            sampler.set_epoch(epoch)
            for images, labels in loader:
                loss = loss_function(*gathered(model(images), labels))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        proxies = loss_function.proxies.detach()
        of_first = proxies.clone()
        dist.broadcast(of_first, 0)
        assert torch.equal(proxies, of_first), "the processes have drifted apart"
        return recall(model.module, X, y)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    print(f"Recall@1 on unseen classes: {main(parser.parse_args().epochs):.3f}")
