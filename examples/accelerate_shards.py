"""A training loop of Hugging Face's accelerate, with the proxies divided among its processes.

    pip install accelerate
    torchrun --standalone --nproc-per-node=2 examples/accelerate_shards.py

``accelerate launch --cpu`` would start one process. The loss is kept out of ``prepare``: its gradients are complete on
every process.
"""

import argparse

import torch
from accelerate import Accelerator
from digits import CLASSES, digits, network, recall
from torch.utils.data import DataLoader

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import ProxyAnchorLoss


def main(epochs: int) -> float:
    """Train, and give the recall on unseen classes."""
    accelerator = Accelerator(cpu=True)
    train, X, y = digits()
    model, loss_function = network(), shard_classes(ProxyAnchorLoss(CLASSES, 32).to(accelerator.device))
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters(), "lr": 1e-3}, {"params": loss_function.parameters(), "lr": 1e-1}], fused=True
    )
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(epochs):
        for images, labels in loader:
            loss = loss_function(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    accelerator.end_training()
    return recall(accelerator.unwrap_model(model), X, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    print(f"Recall@1 on unseen classes: {main(parser.parse_args().epochs):.3f}")
