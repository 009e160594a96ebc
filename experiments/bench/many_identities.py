"""Losses on very many identities of 2 to 6 samples: ``python -m experiments.bench.many_identities CLASSES [WAY …]``.

Trains a network of two layers on features of `experiments.bench.identities`, and writes Recall@1 and TAR at FAR 1e-4 of
identities that are held out to ``experiments/results/many-identities.json``. A way has one or two stages of as many
steps; where it has one, that is twice as long. Seconds are of the processor, for both stages and what is between them.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.bench.identities import FEATURES, Samples, draw_identities
from experiments.bench.loss_study import RESULTS
from experiments.bench.near_negatives import NEAR, NearNegatives
from experiments.bench.outcomes import resumed
from robustdml import evaluate_embeddings
from robustdml.cache import write_text
from robustdml_ops.losses import ArcFaceLoss, NormalizedSoftmaxLoss, ProxyAnchorLoss, SupConLoss, start_class_matrix
from robustdml_ops.optim import ProxyAdagrad
from robustdml_ops.robust import PRISM, OwnClassFilter

WIDTH, HELD_OUT, RATE, TEMPERATURE = 64, 2500, 1e-3, 0.1
CLASSES, SAMPLES = 128, 4  # of a batch
AT_ONCE, FIRST = 1024, 2**14  # samples that are embedded, and whose distributions a filter knows first
ENOUGH_CLASSES = 200_000  # that a filter judges before pairs
SUREST = 0.6  # of the samples by P_clean, to compare filters at one share kept
MOST_FIRST = 8  # embeddings of a class that its proxy begins as; 1 with millions of classes
SEEDS, STEPS = 3, 500
NOISES = {"right": ("none", 0.0)} | {
    f"{round(100 * rate)} % wrong{where}": (kind, rate)
    for kind, where in (("symmetric", ""), ("family", ", within families"))
    for rate in (0.2, 0.4, 0.6)
}


@dataclass
class Run:
    """A network in training, and the samples that it trains on."""

    samples: Samples
    num_classes: int
    network: nn.Module
    kept: Tensor  # rows of the samples
    share: float  # of the negatives of a loss over classes

    def embedded(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Embeddings and labels of rows, a batch at a time."""
        for some in rows.split(AT_ONCE):
            with torch.no_grad():
                yield self.network(self.samples.features(some)), self.samples.labels[some]

    def batches(self, steps: int) -> Iterator[Tensor]:
        """Rows of 4 samples of each of 128 classes that have two or more."""
        labels = self.samples.labels[self.kept]
        order, counts = self.kept[labels.argsort(stable=True)], torch.bincount(labels, minlength=self.num_classes)
        first, several = counts.cumsum(0) - counts, (counts > 1).nonzero()[:, 0]
        for _ in range(steps):
            chosen = several[torch.randint(len(several), (CLASSES,))]
            # A random start and a turn: no sample twice before all have been there once.
            places = (torch.rand(CLASSES, 1) * counts[chosen, None]).long() + torch.arange(SAMPLES)
            yield order[(first[chosen, None] + places % counts[chosen, None]).flatten()]

    def train(self, loss_function: nn.Module, steps: int, judge: PRISM | None = None, proxy_rate: float = 0.1) -> None:
        """Train the network, and the proxies of a loss that has some."""
        optimizers: list[Any] = [torch.optim.AdamW(self.network.parameters(), RATE)]
        if any(True for _ in loss_function.parameters()):
            optimizers.append(ProxyAdagrad(loss_function, lr=proxy_rate))
        for rows in self.batches(steps):
            X, labels = self.network(self.samples.features(rows)), self.samples.labels[rows]
            keep = None if judge is None else judge(X.detach(), labels).keep
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_function(X, labels, sample_weights=keep).backward()
            for optimizer in optimizers:
                optimizer.step()
            if judge is not None:
                judge.enqueue(X.detach(), labels, keep)

    def filter(self, most_classes: int) -> dict[str, float]:
        """Keep what fits its own class, of so many classes; give how much, and how much of it is right."""
        judge, found = OwnClassFilter(window=1000), []
        labels = self.samples.labels[self.kept]
        ordered = self.kept[labels.argsort(stable=True)[: int((labels < most_classes).sum())]]
        for rows in (ordered[:FIRST], ordered):  # some distributions first
            found = [judge(X, labels)[:2] for X, labels in self.embedded(rows)]
        keep, log_p_clean = (torch.cat(one) for one in zip(*found, strict=True))
        self.kept = ordered[keep]
        right = (self.samples.labels == self.samples.identities).float()
        surest = ordered[log_p_clean.topk(round(SUREST * len(ordered))).indices]
        return {
            "kept": float(keep.float().mean()),
            "kept, right": float(right[self.kept].mean()),
            "surest, right": float(right[surest].mean()),
        }

    def train_from_embeddings(self, steps: int, near: bool = False, **settings: Any) -> None:
        """Train by a softmax whose proxies begin as embeddings, at 0.1 radians a step."""
        settings |= {**self.sampled, "negative_correction": False}
        if near:
            settings["negative_share"] *= 1 - NEAR
        loss = NormalizedSoftmaxLoss(self.num_classes, WIDTH, 1 / 16, **settings)
        labels = self.samples.labels[self.kept]
        ordered = self.kept[labels.argsort(stable=True)]
        counts = torch.bincount(labels, minlength=self.num_classes)
        place = torch.arange(len(ordered)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        start_class_matrix(loss, self.embedded(ordered[place < (MOST_FIRST if self.num_classes < 10**6 else 1)]))
        if near:
            loss.negatives.draw = NearNegatives(loss).draw  # type: ignore[method-assign,union-attr]
        self.train(loss, steps, proxy_rate=0.1 / WIDTH**0.5)

    def train_from_random(self, steps: int) -> None:
        """Train by ArcFace, whose proxies begin at random."""
        settings = {"margin": 10, "scale": 24, **self.sampled, "negative_correction": False}
        self.train(ArcFaceLoss(self.num_classes, WIDTH, **settings), steps)

    @property
    def sampled(self) -> dict[str, Any]:
        """Settings of a loss over classes."""
        return {"negative_share": self.share}


def supcon(run: Run, steps: int) -> None:
    run.train(SupConLoss(TEMPERATURE), steps)


def by_prism(run: Run, steps: int) -> None:
    rate = float((run.samples.labels != run.samples.identities).float().mean())
    memory = {"noise_rate": rate, "memory_size": len(run.samples.labels)}
    run.train(SupConLoss(TEMPERATURE), steps, PRISM(run.num_classes, WIDTH, **memory))


def filtered(run: Run, steps: int, then: Callable[[Run, int], None]) -> dict[str, float]:
    supcon(run, steps)
    # Pairs are judged in more classes than the steps draw; proxies are of all.
    found = run.filter(ENOUGH_CLASSES if then is supcon else run.num_classes)
    then(run, steps)
    return found


def then(run: Run, steps: int, stage: Callable[[Run, int], None]) -> None:
    supcon(run, steps)
    stage(run, steps)


WAYS: dict[str, Callable[[Run, int], dict[str, float] | None]] = {
    "untrained": lambda run, steps: None,
    "ArcFace": lambda run, steps: run.train_from_random(2 * steps),
    "Proxy-Anchor": lambda run, steps: run.train(ProxyAnchorLoss(run.num_classes, WIDTH, **run.sampled), 2 * steps),
    "SupCon": lambda run, steps: supcon(run, 2 * steps),
    "SupCon, half the steps": supcon,
    "SupCon behind PRISM, the rate told": lambda run, steps: by_prism(run, 2 * steps),
    "SupCon, then ArcFace": lambda run, steps: then(run, steps, Run.train_from_random),
    "SupCon, then softmax from embeddings": lambda run, steps: then(run, steps, Run.train_from_embeddings),
    'SupCon, then softmax from embeddings with "own"': lambda run, steps: then(
        run, steps, partial(Run.train_from_embeddings, drop_similar_negatives="own")
    ),
    "SupCon, then softmax from embeddings, half of the negatives near": lambda run, steps: then(
        run, steps, partial(Run.train_from_embeddings, near=True)
    ),
    "SupCon, filter, SupCon": lambda run, steps: filtered(run, steps, supcon),
    "SupCon, filter, softmax from embeddings": lambda run, steps: filtered(run, steps, Run.train_from_embeddings),
}


def scores(embed: Callable[[Tensor], Tensor], seed: int) -> dict[str, float]:
    """Recall@1 and TAR at FAR 1e-4 of identities that are held out."""
    held_out = draw_identities(HELD_OUT, seed, held_out=True)
    with torch.no_grad():
        embeddings = embed(held_out.features(torch.arange(len(held_out.labels))))
    found = evaluate_embeddings(embeddings, held_out.labels)
    return {"Recall@1": found["Recall@1"], "TAR at FAR 1e-4": found["TAR at FAR"][1e-4]}


def measure(classes: int, noise: str, way: str, seed: int, steps: int) -> Iterator[dict[str, float]]:
    """The outcome of one run."""
    if way == "untouched features":
        yield scores(lambda features: features, seed)
        return
    torch.manual_seed(seed)
    kind, rate = NOISES[noise]
    samples = draw_identities(classes, seed, noise=kind, rate=rate)
    network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    run = Run(samples, classes, network, torch.arange(len(samples.labels)), 0.1 if classes < 10**5 else 0.01)
    start = time.process_time()
    found = WAYS[way](run, steps) or {}
    yield {"seconds": round(time.process_time() - start, 1)} | found | scores(network, seed)


def main() -> None:
    """Run what the file of results lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", type=int)
    parser.add_argument("ways", nargs="*", default=["untouched features", *WAYS])
    parser.add_argument("--noise", nargs="*", default=["right"], choices=NOISES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--lines",
        type=str,
        default="many-identities.jsonl",
        help="file of outcomes so far, a line each, where this goes on",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    keys = [
        {"classes": given.classes, "noise": noise, "way": way, "seed": seed, "steps": given.steps}
        for noise in given.noise
        for way in given.ways
        for seed in range(given.seeds)
    ]
    lines = Path(given.lines)
    for one in resumed(lines, keys, measure):
        print(json.dumps(one, ensure_ascii=False), flush=True)
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    orders = {"noise": list(NOISES), "way": ["untouched features", *WAYS]}
    content = {
        "command": "python -m experiments.bench.many_identities",
        "machine": f"one thread, PyTorch {torch.__version__}",
        "runs": sorted(
            runs,
            key=lambda run: (run["classes"], *(orders[name].index(run[name]) for name in orders), run["seed"]),
        ),
    }
    write_text(RESULTS / "many-identities.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
