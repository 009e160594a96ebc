"""Many classes of few samples, 40 % of whose labels are wrong: pairs, a filter, and pairs again or proxies.

    python examples/many_classes.py

`stages` is the recipe. Proxies begin as embeddings; the better of both second stages is taken, by held-out classes.
"""

import argparse
from collections.abc import Iterator
from copy import deepcopy

import torch
from digits import recall
from torch import Tensor, nn

from robustdml_ops.losses import NormalizedSoftmaxLoss, SupConLoss, start_class_matrix
from robustdml_ops.optim import ProxyAdagrad
from robustdml_ops.robust import OwnClassFilter

CLASSES, HELD_OUT, SAMPLES, FEATURES, WRONG = 5000, 500, 4, 32, 0.4


def train(model: nn.Module, loss_function: nn.Module, X: Tensor, y: Tensor, steps: int, *others: ProxyAdagrad) -> None:
    """Steps of 64 times 4 neighbours of samples that are sorted by label, most of them of one class."""
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3), *others]
    for _ in range(steps):
        rows = (torch.randint(len(y) - 4, (64, 1)) + torch.arange(4)).flatten()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_function(model(X[rows]), y[rows]).backward()
        for optimizer in optimizers:
            optimizer.step()


@torch.no_grad()
def embedded(model: nn.Module, X: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings and labels, a batch at a time."""
    for rows in torch.arange(len(y)).split(1024):
        yield model(X[rows]), y[rows]


def stages(model: nn.Module, X: Tensor, y: Tensor, held_out: tuple[Tensor, Tensor], steps: int) -> nn.Module:
    """Train on samples that are sorted by label."""
    train(model, SupConLoss(), X, y, steps)  # 1. pairs
    judge = OwnClassFilter()  # 2. wrong labels, without a rate
    keep = torch.cat([judge(embeddings, labels).keep for embeddings, labels in embedded(model, X, y)])
    X, y, other = X[keep], y[keep], deepcopy(model)
    train(model, SupConLoss(), X, y, steps)  # 3. pairs again
    softmax = NormalizedSoftmaxLoss(CLASSES, 64, 1 / 16, negative_share=0.1, negative_correction=False)
    start_class_matrix(softmax, embedded(other, X, y))  # or proxies that begin as embeddings
    train(other, softmax, X, y, steps, ProxyAdagrad(softmax, lr=0.1, radians=True))
    return max(model, other, key=lambda one: recall(one, *held_out))


def samples(classes: int, mixing: Tensor) -> tuple[Tensor, Tensor]:
    """Features (N, 64) whose classes differ in half of the directions, and labels (N,), sorted."""
    labels = torch.arange(classes).repeat_interleave(SAMPLES)
    own = torch.randn(classes, FEATURES)[labels] + 0.5 * torch.randn(len(labels), FEATURES)
    return torch.cat([own, 2 * torch.randn(len(labels), FEATURES)], 1) @ mixing, labels


def main(epochs: int) -> float:
    """Train, and give the recall on unseen classes."""
    torch.manual_seed(0)
    mixing = torch.randn(2 * FEATURES, 2 * FEATURES) / FEATURES**0.5
    (X, y), held_out, unseen = (samples(count, mixing) for count in (CLASSES, HELD_OUT, HELD_OUT))
    y = torch.where(torch.rand(len(y)) < WRONG, torch.randint(CLASSES, y.shape), y)
    order = y.argsort()
    model = nn.Sequential(nn.Linear(2 * FEATURES, 128), nn.ReLU(), nn.Linear(128, 64))
    return recall(stages(model, X[order], y[order], held_out, epochs * len(y) // 256), *unseen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    print(f"Recall@1 on unseen classes: {main(parser.parse_args().epochs):.3f}")
