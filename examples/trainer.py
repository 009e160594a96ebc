"""pytorch-metric-learning's trainer with its miner and its memory, and one of our losses between them.

    python examples/trainer.py

Nothing but the import of the loss differs from a script written for pytorch-metric-learning.
"""

import argparse
import logging

import torch
from digits import digits, network, recall
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.trainers import MetricLossOnly

from robustdml_ops.losses import MultiSimilarityLoss  # was: from pytorch_metric_learning.losses import …


def main(epochs: int) -> float:
    """Train, and give the recall on unseen classes."""
    torch.manual_seed(0)
    train, X, y = digits()
    model = network()
    loss = CrossBatchMemory(MultiSimilarityLoss(), 32, memory_size=512, miner=MultiSimilarityMiner(epsilon=0.1))
    trainer = MetricLossOnly(
        models={"trunk": model},
        optimizers={"trunk_optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)},
        batch_size=64,
        loss_funcs={"metric_loss": loss},
        dataset=train,
        sampler=MPerClassSampler(train.tensors[1], m=8, length_before_new_iter=len(train)),
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
    )
    trainer.train(num_epochs=epochs)
    return recall(model, X, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    logging.basicConfig(level=logging.WARNING)
    print(f"Recall@1 on unseen classes: {main(parser.parse_args().epochs):.3f}")
