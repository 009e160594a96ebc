"""Contrastive losses where labels are wrong: ``python -m experiments.bench.contrastive_noise [DATA …]``.

Trains a linear layer on frozen features with each loss, labels right, 30 % and 50 % wrong at random, and writes MAP@R
of unseen classes to ``experiments/results/contrastive.json``. The loss behind PRISM sees the samples that it keeps.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from experiments.bench.loss_study import write_study
from robustdml.data import RetrievalData
from robustdml.noise import with_wrong_labels
from robustdml.retrieval import retrieval_metrics
from robustdml_ops.losses import ContrastiveLoss, NTXentLoss, SupConLoss
from robustdml_ops.robust import PRISM

NOISES = {"right": "none", "30 % wrong": "symmetric:0.3", "50 % wrong": "symmetric:0.5"}
FILTERED = "SupCon behind PRISM"
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "contrastive": ContrastiveLoss,
    "NT-Xent": NTXentLoss,
    "SupCon": SupConLoss,
    "SupCon, mean inside": lambda: SupConLoss(form="inside"),
    FILTERED: SupConLoss,
}
SEEDS, STEPS, CLASSES, SAMPLES, WIDTH, RATE = 3, 600, 64, 4, 64, 1e-3


def batch(members: list[Tensor]) -> Tensor:
    """Places of 4 samples of each of 64 classes, or of all."""
    chosen = torch.randperm(len(members))[:CLASSES].tolist()
    return torch.cat([members[k][torch.randint(len(members[k]), (SAMPLES,))] for k in chosen])


def score(data: RetrievalData, loss: str, noise: str, seed: int, steps: int = STEPS) -> float:
    """MAP@R of unseen classes after training."""
    train = with_wrong_labels(data, noise, seed).train
    torch.manual_seed(seed)
    inputs, labels = (torch.from_numpy(values) for values in (train.inputs, train.labels))
    members = [found for k in range(train.num_classes) if len(found := (labels == k).nonzero()[:, 0])]
    layer, loss_function = nn.Linear(inputs.shape[1], WIDTH), LOSSES[loss]()
    bank = {"similarity": "vmf", "memory_size": len(labels), "vmf_start": STEPS // 10}
    prism = PRISM(train.num_classes, WIDTH, threshold="cautious", **bank) if loss == FILTERED else None
    optimizer = torch.optim.AdamW(layer.parameters(), lr=RATE)
    for _ in range(steps):
        rows = batch(members)
        embeddings = layer(inputs[rows])
        keep = None
        if prism is not None:
            keep = prism(embeddings.detach(), labels[rows]).keep
            prism.enqueue(embeddings.detach(), labels[rows], keep)
        optimizer.zero_grad()
        loss_function(embeddings, labels[rows], sample_weights=keep).backward()
        optimizer.step()
    with torch.no_grad():
        embeddings = layer(torch.from_numpy(data.test.inputs)).numpy()
    return retrieval_metrics(embeddings, data.test.labels)["mean_average_precision_at_r"]


if __name__ == "__main__":
    write_study(
        "contrastive",
        "python -m experiments.bench.contrastive_noise",
        __doc__,
        LOSSES,
        NOISES,
        score,
        SEEDS,
        steps=STEPS,
    )
