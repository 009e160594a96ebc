"""A Lightning module with a proxy loss: its proxies are parameters of the module, with a learning rate of their own.

    pip install pytorch-lightning
    python examples/lightning_module.py --processes 2

Several processes divide the proxies among them.
"""

import argparse
import tempfile
from typing import Any

import pytorch_lightning as lightning
import torch
from digits import CLASSES, digits, network, recall
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from robustdml_ops.distributed import leave_out_of_ddp, shard_classes
from robustdml_ops.losses import ProxyAnchorLoss


class MetricLearning(lightning.LightningModule):
    """Network and loss. A checkpoint holds the proxies, too."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()
        self.loss_function = ProxyAnchorLoss(CLASSES, 32)

    def setup(self, stage: str) -> None:
        """Divide the proxies among the processes, which Lightning has started."""
        if self.trainer.world_size > 1:
            shard_classes(self.loss_function.to(self.trainer.strategy.root_device))
            leave_out_of_ddp(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Gather the proxies, as the first process writes the file."""
        state = checkpoint["state_dict"]
        state |= {name: value.full_tensor() for name, value in state.items() if isinstance(value, DTensor)}

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Loss of a batch."""
        images, labels = batch
        loss = self.loss_function(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, a hundred times as fast for the proxies, as Proxy-Anchor's authors train them."""
        groups = [
            {"params": self.model.parameters(), "lr": 1e-3},
            {"params": self.loss_function.parameters(), "lr": 1e-1, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, fused=True)


def main(epochs: int, processes: int) -> float | None:
    """Train, save, load again, and give the recall on unseen classes; None on other processes than the first."""
    lightning.seed_everything(0, verbose=False)
    train, X, y = digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=processes,
            strategy="auto" if processes == 1 else "ddp",
            precision="bf16-mixed",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(MetricLearning(), DataLoader(train, batch_size=64 // processes, shuffle=True))
        trainer.save_checkpoint(f"{folder}/last.ckpt", weights_only=True)
        if not trainer.is_global_zero:
            return None
        again = MetricLearning.load_from_checkpoint(f"{folder}/last.ckpt")
    return recall(again.model, X, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    found = main(**vars(parser.parse_args()))
    if found is not None:
        print(f"Recall@1 on unseen classes: {found:.3f}")
