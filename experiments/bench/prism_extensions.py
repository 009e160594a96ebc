"""Effect of PRISM's extensions on synthetic classes: ``python -m experiments.bench.prism_extensions``."""

import math

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize

from robustdml_ops.robust import PRISM
from robustdml_ops.robust.prism.scores import Scores
from robustdml_ops.robust.prism.thresholds import PerClassThreshold, TopR

CLASSES, EPOCHS = 300, 8


def scores(samples: int, noise_rate: float, drift: float) -> tuple[Tensor, Tensor]:
    """(steps, C) scores, a sample of each class at a time, and which are of wrong labels.

    Every class has a level of its own (standard deviation 3); right labels score 1.5 above it, wrong ones 1.5 below,
    with unit spread. All scores drift upwards.
    """
    random = torch.Generator().manual_seed(0)
    level = 3 * torch.randn(CLASSES, generator=random)
    wrong = torch.rand(samples, CLASSES, generator=random) < noise_rate
    order = [torch.rand(samples, CLASSES, generator=random).argsort(0) for _ in range(EPOCHS)]
    wrong = torch.cat([wrong.gather(0, places) for places in order])
    progress = torch.arange(EPOCHS * samples)[:, None] / samples
    noise = torch.randn(wrong.shape, generator=random)
    return level + torch.where(wrong, -1.5, 1.5) + noise + drift * progress, wrong


class Stochastic:
    """Robbins–Monro: a step up by eta·R·spread, or down by eta·(1 − R)·spread where the score lay below."""

    def __init__(self, noise_rate: float, eta: float) -> None:
        self.noise_rate, self.eta = noise_rate, eta
        self.quantile, self.spread = torch.full((CLASSES,), -math.inf), torch.full((CLASSES,), 0.1)

    def __call__(self, scores: Scores, labels: Tensor) -> Tensor:
        before = self.quantile
        if torch.isinf(before).any():
            self.quantile = scores.values
            return before
        self.spread = 0.95 * self.spread + 0.05 * (scores.values - before).abs()
        below = (scores.values <= before).float()
        self.quantile = before + self.eta * self.spread * (self.noise_rate - below)
        return before


def simulate(threshold, values: Tensor, wrong: Tensor, samples: int) -> str:
    """Rate of rejection with its deviation between classes; precision and recall of what is kept."""
    labels, known = torch.arange(CLASSES), torch.ones(CLASSES, dtype=torch.bool)
    kept = torch.stack([row > threshold(Scores(row, known), labels) for row in values])[samples:]
    right = ~wrong[samples:]
    rate = 1 - kept.float().mean(0)
    precision, recall = (kept & right).sum() / kept.sum(), (kept & right).sum() / right.sum()
    return f"{rate.mean():.3f} ± {rate.std():.3f} | {precision:.3f} | {recall:.3f}"


def thresholds() -> None:
    """One quantile per class, by its last scores or by stochastic approximation, against one for all."""
    print("| R | samples a class | drift an epoch | threshold | rate | precision | recall |\n" + "|---" * 7 + "|")
    for noise_rate, samples, drift in ((0.3, 54, 0.5), (0.5, 54, 0.0), (0.5, 54, 0.5), (0.5, 54, 2.0), (0.5, 8, 0.5)):
        values, wrong = scores(samples, noise_rate, drift)
        contenders = {"one for all (top-r)": TopR(noise_rate)}
        for window in (5, 10, 20, 30, 60):
            contenders[f"last {window}"] = PerClassThreshold(noise_rate, window, CLASSES, torch.float32)
        for eta in (0.1, 0.3, 1.0):
            contenders[f"stochastic, step {eta}"] = Stochastic(noise_rate, eta)
        for name, threshold in contenders.items():
            result = simulate(threshold, values, wrong, samples)
            print(f"| {noise_rate} | {samples} | {drift} | {name} | {result} |")


def draw(directions: Tensor, spread: float) -> Tensor:
    """Unit rows about unit ``directions``."""
    return normalize(directions + spread * torch.randn_like(directions) / directions.shape[1] ** 0.5)


def related_classes(classes: int, dim: int) -> Tensor:
    """Directions of classes that have half of themselves in common."""
    return normalize(normalize(torch.randn(classes, dim)) + normalize(torch.randn(1, dim)))


def small_classes() -> None:
    """Half of the classes have 5 rows in the bank, half 50; half of the new samples have a wrong label."""
    print("\n| spread | score | AUC | recall, 5 rows | recall, 50 rows |\n" + "|---" * 5 + "|")
    C, D = 200, 128
    for spread in (1.5, 2.0, 2.5):
        torch.manual_seed(0)
        directions, rows = related_classes(C, D), torch.where(torch.arange(C) < C // 2, 5, 50)
        stored = torch.arange(C).repeat_interleave(rows)
        bank, truth = draw(directions[stored], spread), torch.arange(C).repeat(20)
        samples, right = draw(directions[truth], spread), torch.rand(20 * C) < 0.5
        labels = torch.where(right, truth, (truth + torch.randint(1, C, truth.shape)) % C)
        for name in ("average", "none", "u", "predictive"):
            vmf = {} if name == "average" else {"vmf_start": 0, "bias_correction": name}
            prism = PRISM(C, D, "vmf" if vmf else name, 0.5, "top-r", memory_size=len(bank), **vmf)
            prism.enqueue(bank, stored, torch.ones(len(bank), dtype=torch.bool))
            result, small = prism(samples, labels), labels < C // 2
            recalls = (float(result.keep[right & half].float().mean()) for half in (small, ~small))
            auc = roc_auc_score(right, result.log_p_clean)
            title = "AvgSim" if name == "average" else f'vMF-Sim, "{name}"'
            print(f"| {spread} | {title} | {auc:.3f} | " + " | ".join(f"{recall:.2f}" for recall in recalls) + " |")


def own_copies() -> None:
    """The bank has each sample of the training set once, wrong labels among them, and judges the same samples again."""
    print("\n| score | own copies | AUC |\n" + "|---" * 3 + "|")
    C, D, each, spread = 200, 128, 10, 1.5
    torch.manual_seed(0)
    directions, truth = related_classes(C, D), torch.arange(C).repeat(each)
    samples, right, ids = draw(directions[truth], spread), torch.rand(len(truth)) < 0.5, torch.arange(len(truth))
    labels = torch.where(right, truth, (truth + torch.randint(1, C, truth.shape)) % C)
    again = draw(samples, 0.3)  # the network has moved on, the picture is cropped otherwise
    for similarity, settings in (("average", {}), ("vmf", {"vmf_start": 0})):
        for title, copies in (("in the class", {}), ("left out", {"num_samples": len(ids)})):
            prism = PRISM(C, D, similarity, 0.5, memory_size=len(ids), **settings, **copies)
            prism.enqueue(samples, labels, torch.ones(len(ids), dtype=torch.bool), ids)
            auc = roc_auc_score(right, prism.log_p_clean(again, labels, ids))
            print(f"| {similarity} | {title} | {auc:.3f} |")


if __name__ == "__main__":
    thresholds()
    small_classes()
    own_copies()
