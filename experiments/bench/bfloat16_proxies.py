"""Proxies of two bytes against float32: ``python -m experiments.bench.bfloat16_proxies [DATA …]``.

Trains a linear layer on the frozen features of each data set with proxies of each type, and writes Recall@1 of unseen
classes to ``experiments/results/bfloat16-proxies.json``: means and standard errors over the seeds, and the differences
to float32 paired by seed. Data sets that the file has and that are not named stay.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import experiments.data  # noqa: F401  # its data sets, by name
from robustdml.cache import write_text
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, load_data
from robustdml.evaluation import retrieval_metrics
from robustdml.methods import METHODS
from robustdml.networks.preparation import prepare
from robustdml_ops.optim import ProxyAdamW

RESULT = Path(__file__).parents[1] / "results" / "bfloat16-proxies.json"
LOSSES = ("proxy-anchor", "arcface")
SEEDS, EPOCHS, BATCH, WIDTH = 3, 15, 256, 64
RATE = TrainingConfig().proxy_learning_rate
# By the names of the table: the optimiser of a loss, which may first change the type of the proxies.
PROXIES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "float32": lambda loss: ProxyAdamW(loss, lr=RATE, weight_decay=0),
    "bfloat16, rounded at random": lambda loss: ProxyAdamW(
        loss.bfloat16(), lr=RATE, weight_decay=0, moments=torch.bfloat16
    ),
    "bfloat16, rounded to the nearest": lambda loss: torch.optim.AdamW(
        loss.bfloat16().parameters(), lr=RATE, weight_decay=0
    ),
}


def recall(data: RetrievalData, method: str, proxies: str, seed: int) -> float:
    """Recall@1 of unseen classes after training."""
    config = TrainingConfig(method=method)
    torch.manual_seed(seed)
    inputs, labels = (torch.from_numpy(values) for values in (data.train.inputs, data.train.labels))
    layer = nn.Linear(inputs.shape[1], WIDTH)
    loss_function = METHODS[method].make_loss(config.options, data.train.num_classes, WIDTH)
    optimizers = [
        torch.optim.AdamW(layer.parameters(), lr=config.network_learning_rate),
        PROXIES[proxies](loss_function),
    ]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(BATCH):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_function(layer(inputs[rows]), labels[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
    with torch.no_grad():
        embeddings = layer(torch.from_numpy(data.test.inputs)).numpy()
    return retrieval_metrics(embeddings, data.test.labels)["precision_at_1"]


def study(name: str) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Recall@1, and its difference to float32, of each loss and type: mean and standard error."""
    data = prepare(TrainingConfig(), load_data(name), torch.device("cpu")).data
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for method in LOSSES:
        values: dict[str, dict[int, float]] = {}
        for proxies in PROXIES:
            values[proxies] = {seed: recall(data, method, proxies, seed) for seed in range(SEEDS)}
            print(name, method, proxies, *(f"{value:.4f}" for value in values[proxies].values()), flush=True)
        found[METHODS[method].title] = {
            proxies: {
                "Recall@1": _summary(list(of.values())),
                "difference": _summary([of[s] - values["float32"][s] for s in of]),
            }
            for proxies, of in values.items()
        }
    return found


def _summary(values: list[float]) -> list[float]:
    """Mean and standard error."""
    return [round(statistics.fmean(values), 5), round(statistics.stdev(values) / len(values) ** 0.5, 5)]


def main() -> None:
    """Train all, and write the file."""
    torch.set_num_threads(1)
    content = json.loads(RESULT.read_text()) if RESULT.exists() else {"results": {}}
    settings = {"epochs": EPOCHS, "seeds": SEEDS, "batch": BATCH, "embedding size": WIDTH, "learning rate": RATE}
    for name in sys.argv[1:] or ["hanzi-small"]:
        content["results"][name] = study(name)
        whole = {"command": "python -m experiments.bench.bfloat16_proxies DATA", **settings, **content}
        write_text(RESULT, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
