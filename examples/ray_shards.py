"""Ray Train launches the processes, and the proxies are divided among them.

    pip install "ray[train]"
    python examples/ray_shards.py --processes 2

The loss is not given to ``prepare_model``: its gradients are complete on every process.
"""

import argparse

import ray.train.torch
import torch
from digits import CLASSES, digits, network, recall
from torch.utils.data import DataLoader

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import ProxyAnchorLoss


def train(settings: dict[str, int]) -> None:
    """Train on each process, and print the recall on unseen classes."""
    train, X, y = digits()
    model = ray.train.torch.prepare_model(network())
    loss_function = shard_classes(ProxyAnchorLoss(CLASSES, 32).to(ray.train.torch.get_device()))
    loader = ray.train.torch.prepare_data_loader(DataLoader(train, batch_size=32, shuffle=True))
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters(), "lr": 1e-3}, {"params": loss_function.parameters(), "lr": 1e-1}], fused=True
    )
    for _ in range(settings["epochs"]):
        for images, labels in loader:
            loss = loss_function(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"Recall@1 on unseen classes: {recall(model.module, X, y):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    workers = ray.train.ScalingConfig(num_workers=given.processes)
    ray.train.torch.TorchTrainer(train, train_loop_config=vars(given), scaling_config=workers).fit()
