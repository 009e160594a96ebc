"""PRISM's κ in small classes, and without own copies in its bank: ``python -m experiments.bench.prism_extensions``."""

import argparse

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize

from robustdml_ops.robust import PRISM


def draw(directions: Tensor, spread: float) -> Tensor:
    """Unit rows about unit ``directions``."""
    return normalize(directions + spread * torch.randn_like(directions) / directions.shape[1] ** 0.5)


def related_classes(classes: int, dim: int) -> Tensor:
    """Directions of classes that have half of themselves in common."""
    return normalize(normalize(torch.randn(classes, dim)) + normalize(torch.randn(1, dim)))


def small_classes() -> None:
    """Half of the classes have 5 rows in the bank, half 50; half of the new samples have a wrong label."""
    print("| spread | score | AUC | recall, 5 rows | recall, 50 rows |\n" + "|---" * 5 + "|")
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
    argparse.ArgumentParser(description=__doc__).parse_args()
    small_classes()
    own_copies()
