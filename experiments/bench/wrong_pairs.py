"""Losses of two towers where pairs do not belong together: ``python -m experiments.bench.wrong_pairs [DATA …]``.

Pairs are two samples of a class, each with a linear layer of its own on frozen features; a share of the pairs is of
two samples at random instead. Writes MAP@R of unseen classes, by the first layer, to
``experiments/results/wrong-pairs.json``.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from experiments.bench.loss_study import write_study
from robustdml.data import RetrievalData
from robustdml.retrieval import retrieval_metrics
from robustdml_ops.losses import InfoNCELoss, SigmoidLoss

SHARES = {"right": 0.0, "30 % wrong": 0.3, "50 % wrong": 0.5}
SEEDS, STEPS, PAIRS, WIDTH, RATE = 3, 600, 256, 64, 1e-3


def at(temperature: float, q: float | None = None) -> InfoNCELoss:
    """InfoNCE, or RINCE with q, whose temperature is not learnt."""
    loss = InfoNCELoss(temperature, q=q)
    loss.logit_scale.requires_grad_(False)
    return loss


LOSSES: dict[str, Callable[[], nn.Module]] = {
    "InfoNCE": InfoNCELoss,
    "InfoNCE, temperature 0.2": lambda: at(0.2),
    "RINCE, q = 0.5": lambda: InfoNCELoss(q=0.5),
    "RINCE, q = 0.5, temperature 0.2": lambda: at(0.2, 0.5),
    "RINCE, q = 0.1, temperature 0.2": lambda: at(0.2, 0.1),
    "SigmoidLoss": SigmoidLoss,
}


def pair(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Samples that have another of their class, and a partner of each: of its class, but for a share at random."""
    by_class = [rows for k in labels.unique() if len(rows := (labels == k).nonzero()[:, 0]) > 1]
    shuffled = [rows[torch.randperm(len(rows))] for rows in by_class]
    samples, partners = torch.cat(shuffled), torch.cat([rows.roll(1) for rows in shuffled])
    wrong = torch.rand(len(samples)) < share
    partners[wrong] = samples[torch.randint(len(samples), (int(wrong.sum()),))]
    return samples, partners


def score(data: RetrievalData, loss: str, share: float, seed: int, steps: int = STEPS) -> float:
    """MAP@R of unseen classes after training."""
    torch.manual_seed(seed)
    inputs = torch.from_numpy(data.train.inputs)
    samples, partners = pair(torch.from_numpy(data.train.labels), share)
    towers = [nn.Linear(inputs.shape[1], WIDTH) for _ in range(2)]
    towers[1].load_state_dict(towers[0].state_dict())
    loss_function = LOSSES[loss]()
    trained = [parameter for part in (*towers, loss_function) for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    for _ in range(steps):
        rows = torch.randint(len(samples), (PAIRS,))
        optimizer.zero_grad()
        loss_function(towers[0](inputs[samples[rows]]), towers[1](inputs[partners[rows]])).backward()
        optimizer.step()
    with torch.no_grad():
        embeddings = towers[0](torch.from_numpy(data.test.inputs)).numpy()
    return retrieval_metrics(embeddings, data.test.labels)["mean_average_precision_at_r"]


if __name__ == "__main__":
    write_study(
        "wrong-pairs", "python -m experiments.bench.wrong_pairs", __doc__, LOSSES, SHARES, score, SEEDS, steps=STEPS
    )
