"""Otsu's cut of PRISM's scores on Glyphs, as they are and as surprises: ``python -m experiments.bench.prism_cut``.

Trains the contrastive loss with vMF-Sim and true thresholds per class for each noise (half a minute); prints a table.
"""

import argparse

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.filters.options import FilterOptions
from robustdml.networks.preparation import prepare
from robustdml.noise import with_wrong_labels
from robustdml.progress import silent
from robustdml.train import train
from robustdml_ops.ops import otsu_threshold

NOISES = ("none", "symmetric:0.5", "symmetric:0.7", "small-cluster:0.5", "semantic:0.5")
FILTER = FilterOptions("prism-vmf", threshold="per-class", without_copies=True)


def parted(surprise: NDArray[np.float32], changed: NDArray[np.bool_]) -> tuple[str, float]:
    """What lies above Otsu's cut: shares of the wrong and of the right labels, and of all."""
    above = surprise > float(otsu_threshold(torch.from_numpy(surprise)).threshold)
    found = f"{above[changed].mean():.0%}" if changed.any() else "–"
    return f"{found}, {above[~changed].mean():.1%}", above.mean()


def main() -> None:
    """Print the table of docs/labels.md."""
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    data = prepare(TrainingConfig(), load_data("glyphs"), cpu, silent).data
    print("| noise | cut of log P: found, false alarms | cut of u: found, false alarms | share below the cut |")
    print("|---|---|---|---|")
    for noise in NOISES:
        result = train(
            TrainingConfig(method="contrastive", filter=FILTER), with_wrong_labels(data, noise, seed=0), device="cpu"
        )
        scores = result.scores["log_p_clean"]
        judged = ~np.isnan(scores)
        scores, changed = scores[judged], result.changed[judged]
        plain, _ = parted(-scores, changed)
        surprise, share = parted(np.log1p(-scores), changed)
        print(f"| {noise} | {plain} | {surprise} | {share:.0%} |")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
