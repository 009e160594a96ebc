"""The data of the examples: scikit-learn's digits, five of them to train on and five that no training sees."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import TensorDataset

from robustdml_ops.ops import nearest

SIZE = 64  # pixels
CLASSES = 5


def digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """Training set of the digits 0 … 4 (images (64,), labels), and images and labels of 5 … 9."""
    images, labels = load_digits(return_X_y=True)
    X, y = torch.from_numpy(images / 16).float(), torch.from_numpy(labels).long()
    seen = y < CLASSES
    return TensorDataset(X[seen], y[seen]), X[~seen], y[~seen]


def network() -> torch.nn.Module:
    """Images (B, 64) to embeddings (B, 32)."""
    return torch.nn.Sequential(torch.nn.Linear(SIZE, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))


def recall(model: torch.nn.Module, X: Tensor, y: Tensor) -> float:
    """Share of the images whose nearest other image is of their class."""
    model.eval()
    with torch.no_grad():
        embeddings = model(X)
    found = nearest(embeddings, embeddings, 1, exclude_self=True).indices[:, 0]
    return float((y[found] == y).float().mean())
