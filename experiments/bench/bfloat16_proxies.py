"""Proxies of two bytes against float32: ``python -m experiments.bench.bfloat16_proxies [DATA …]``.

Trains a linear layer on the frozen features of each data set with proxies of each type, and writes Recall@1 of unseen
classes to ``experiments/results/bfloat16-proxies.json``: means and standard errors over the seeds, and the differences
to float32 paired by seed. Data sets and losses that the file has and that are not named stay.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

import experiments.data  # noqa: F401  # its data sets, by name
from robustdml.cache import write_text
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, load_data
from robustdml.methods import METHODS
from robustdml.methods.classes import NegativeOptions
from robustdml.networks.preparation import prepare
from robustdml.options import OptionSet
from robustdml.retrieval import retrieval_metrics
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


def recall(
    data: RetrievalData, method: str, proxies: str, seed: int, epochs: int = EPOCHS, share: float = 1.0
) -> float:
    """Recall@1 of unseen classes after training with this share of the negatives."""
    config = TrainingConfig(method=method, options=OptionSet(NegativeOptions(share=share)))
    torch.manual_seed(seed)
    inputs, labels = (torch.from_numpy(values) for values in (data.train.inputs, data.train.labels))
    layer = nn.Linear(inputs.shape[1], WIDTH)
    loss_function = METHODS[method].make_loss(config.options, data.train.num_classes, WIDTH)
    optimizers = [
        torch.optim.AdamW(layer.parameters(), lr=config.network_learning_rate),
        PROXIES[proxies](loss_function),
    ]
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(BATCH):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_function(layer(inputs[rows]), labels[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
    with torch.no_grad():
        embeddings = layer(torch.from_numpy(data.test.inputs)).numpy()
    return retrieval_metrics(embeddings, data.test.labels)["precision_at_1"]


def study(
    name: str,
    losses: Sequence[str] = LOSSES,
    types: Sequence[str] = tuple(PROXIES),
    epochs: int = EPOCHS,
    share: float = 1.0,
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Recall@1, and its difference to float32, of each loss and type: mean and standard error."""
    data = prepare(TrainingConfig(), load_data(name), torch.device("cpu")).data
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for method in losses:
        values: dict[str, list[float]] = {}
        for proxies in types:
            values[proxies] = [recall(data, method, proxies, seed, epochs, share) for seed in range(SEEDS)]
            print(name, method, proxies, *(f"{value:.4f}" for value in values[proxies]), flush=True)
        found[METHODS[method].title] = {
            proxies: {
                "Recall@1": _summary(of),
                "difference": _summary([a - b for a, b in zip(of, values["float32"], strict=True)]),
            }
            for proxies, of in values.items()
        }
    return found


def _summary(values: list[float]) -> list[float]:
    """Mean and standard error."""
    return [round(statistics.fmean(values), 5), round(statistics.stdev(values) / len(values) ** 0.5, 5)]


def main() -> None:
    """Train all, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=["hanzi-small"], help="as for robustdml train")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--types", nargs="+", choices=PROXIES, default=tuple(PROXIES), help="float32 is the first")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--share", type=float, default=1.0, help="as --negative-share")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(RESULT.read_text()) if RESULT.exists() else {"results": {}}
    settings = {"seeds": SEEDS, "batch": BATCH, "embedding size": WIDTH, "learning rate": RATE}
    for name in arguments.data:
        found = study(name, arguments.losses, arguments.types, arguments.epochs, arguments.share)
        content["results"][name] = content["results"].get(name, {}) | found
        content["epochs"] = content.get("epochs", {}) | {name: arguments.epochs}
        content["share of negatives"] = content.get("share of negatives", {}) | {name: arguments.share}
        whole = {"command": "python -m experiments.bench.bfloat16_proxies DATA", **settings, **content}
        write_text(RESULT, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
