"""A plain loop with automatic mixed precision and torch.compile, of network and loss.

    python examples/amp_and_compile.py

The loss sums in float32 at least, whatever the network does; on a GPU autocast makes the operands of its products
bfloat16, on the CPU it changes nothing. A gradient scaler works as with any loss. Half of the labels of this run are
wrong, and the loss is told which to doubt.
"""

import argparse

import torch
from digits import CLASSES, digits, network, recall
from torch.utils.data import DataLoader, TensorDataset

from robustdml_ops.losses import SoftTripleLoss
from robustdml_ops.robust import PRISM


def with_wrong_labels(train: TensorDataset, share: float) -> TensorDataset:
    """Images, labels of which a share is another class, and the place of each."""
    X, y = train.tensors
    wrong = torch.rand(len(y)) < share
    other = (y + torch.randint(1, CLASSES, y.shape)) % CLASSES
    return TensorDataset(X, torch.where(wrong, other, y), torch.arange(len(y)))


def main(epochs: int) -> float:
    """Train, and give the recall on unseen classes."""
    torch.manual_seed(0)
    train, X, y = digits()
    train = with_wrong_labels(train, 0.5)
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    model, loss_function = network(), SoftTripleLoss(CLASSES, 32, centers_per_class=2)
    prism = PRISM(CLASSES, 32, "vmf", threshold="otsu", memory_size=len(train), vmf_start=len(loader))
    optimizer = torch.optim.AdamW([*model.parameters(), *loss_function.parameters()], lr=1e-3, fused=True)

    network_, loss_ = torch.compile(model), torch.compile(loss_function, fullgraph=True)
    for _ in range(epochs):
        model.train()
        for images, labels, ids in loader:
            with torch.autocast("cpu", torch.bfloat16):
                embeddings = network_(images)
            result = prism(embeddings, labels, ids)
            loss = loss_(embeddings, labels, sample_weights=result.keep)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            prism.enqueue(embeddings, labels, result.keep, ids)
    return recall(model, X, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    print(f"Recall@1 on unseen classes: {main(parser.parse_args().epochs):.3f}")
