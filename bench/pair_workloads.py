"""The contenders on pairs. ``python -m bench.pair_workloads NAME B D m`` prints a step's peak memory on the CPU."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from robustdml_ops.engine.similarity_chunks import chunk_rows
from robustdml_ops.losses import (
    ContrastiveLoss,
    InfoNCELoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    NTXentLoss,
    SigmoidLoss,
    SupConLoss,
)
from robustdml_ops.ops import pair_lse
from robustdml_ops.python_ref import multi_similarity_loss, supcon_loss

from .device import DEVICE
from .memory import resident

MS = {"alpha": 2.0, "beta": 50.0, "base": 0.5}


@dataclass(frozen=True)
class PairShape:
    """Batch, embedding size, rows of the bank (0: none), and the share of wrong labels in percent."""

    B: int
    D: int
    m: int = 0
    wrong: int = 0

    def __str__(self) -> str:
        bank = f" m={self.m:.0e}".replace("e+0", "e") if self.m else ""
        return f"B={self.B} D={self.D}{bank}" + (f", {self.wrong} % wrong labels" if self.wrong else "")


class PairWorkload:
    """Inputs of one shape, with four samples of a class, and every contender that runs on them."""

    def __init__(
        self, shape: PairShape, device: str = DEVICE, dtype: torch.dtype = torch.float32, amp: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.shape, self.amp, new = shape, amp, {"device": torch.device(device)}
        classes = max(1, shape.B // 4)
        self.labels = torch.arange(shape.B, **new) % classes
        directions = torch.randn(classes, shape.D, **new)
        rows = directions[self.labels] + torch.randn(shape.B, shape.D, **new)
        self.embeddings = rows.to(dtype).requires_grad_()
        wrong = torch.rand(shape.B, **new) < shape.wrong / 100
        self.labels = torch.where(wrong, torch.randint(classes, (shape.B,), **new), self.labels)
        self.bank = torch.nn.functional.normalize(torch.randn(shape.m, shape.D, **new))
        self.bank_labels = torch.randint(classes, (shape.m,), **new)

    def contender(self, name: str) -> Callable[[], list[Tensor]]:
        """Return the step of ``name``: value and gradient, or the value alone where it ends in ``sweep``."""
        X, y = self.embeddings, self.labels
        bank = (self.bank, self.bank_labels) if self.shape.m else (None, None)
        if name == "robustdml/sweep":
            return lambda: list(pair_lse(X.detach(), y, **MS, epsilon=0.1))
        modules: dict[str, Callable[[], torch.nn.Module]] = {
            "ms": lambda: MultiSimilarityLoss(**MS, epsilon=0.1),
            "ms none": lambda: MultiSimilarityLoss(**MS, epsilon=0.1, reduction="none"),
            "contrastive": lambda: ContrastiveLoss(pos_margin=1, neg_margin=0.5, distance="cosine"),
            "supcon": SupConLoss,
            "nt-xent": NTXentLoss,
            "memory": MemoryContrastiveLoss,
            "info-nce of two towers": InfoNCELoss,
            "sigmoid of two towers": SigmoidLoss,
        }
        references: dict[str, Callable[[], Tensor]] = {
            "reference/ms": lambda: multi_similarity_loss(X, y, **MS, epsilon=0.1),
            "reference/supcon": lambda: supcon_loss(X, y),
        }
        if (kind := name.removeprefix("robustdml/")) in modules:
            module = modules[kind]().to(X.device)
            given = (X, self.bank.requires_grad_()) if "towers" in name else (X, y, None, *bank)

            def loss() -> Tensor:
                found: Tensor = module(*given)
                return found.mean() if found.dim() else found
        else:
            loss = references[name] if name in references else self.beside_the_peer(name)

        def step() -> list[Tensor]:
            X.grad = self.bank.grad = None
            with torch.autocast(X.device.type, torch.bfloat16) if self.amp else nullcontext():
                value = loss()
            value.backward()
            return [value.detach(), X.grad]

        return step

    def beside_the_peer(self, name: str) -> Callable[[], Tensor]:
        """A loss of pytorch-metric-learning, or ours with its miner or its memory."""
        from pytorch_metric_learning import losses, miners

        X, y, bank = self.embeddings, self.labels, (self.bank, self.bank_labels)
        miner, theirs = miners.MultiSimilarityMiner(0.1), losses.MultiSimilarityLoss(**MS)
        if name == "pml/ms":
            return lambda: theirs(X, y, miner(X, y))
        cosine = losses.ContrastiveLoss(pos_margin=1, neg_margin=0.5, distance=theirs.distance)
        if name == "pml/contrastive":
            return lambda: cosine(X, y)
        if name == "pml/supcon":
            supcon = losses.SupConLoss()
            return lambda: supcon(X, y)
        if name == "pml/memory":
            return lambda: cosine(X, y) + cosine(X, y, None, *bank)
        loss = {"robustdml": MultiSimilarityLoss(**MS), "pml": theirs}[name.split("/")[0]]
        if "miner's pairs" in name:
            found = miner(X, y)  # beforehand: mining is not timed
            return lambda: loss(X, y, found)
        queue = losses.CrossBatchMemory(loss, self.shape.D, memory_size=self.shape.m).to(X.device)
        while not queue.has_been_filled:
            queue(X.detach(), y)
        return lambda: queue(X, y)

    def products(self, of_batch: int, of_bank: int) -> Callable[[], None]:
        """The floor: ``of_batch`` products of the batch with itself and ``of_bank`` with the bank, chunk by chunk."""
        X, bank = self.embeddings.detach(), self.bank.detach()

        def run(others: Tensor, count: int) -> None:
            rows = min(len(X), chunk_rows(len(X), len(others) + 2 * X.shape[1], X.device))
            S, dX = X.new_empty(rows, len(others)), torch.zeros_like(others if count > 2 else X[:1])
            for first in range(0, len(X) if count else 0, rows):
                chunk = X[first : first + rows]
                s = torch.mm(chunk, others.t(), out=S[: len(chunk)])
                if count > 1:
                    torch.mm(s, others)
                if count > 2:
                    dX.addmm_(s.t(), chunk)

        def step() -> None:
            run(X, of_batch)
            run(bank, of_bank)

        return step


def peak(name: str, shape: PairShape) -> dict[str, float]:
    """Peak of the process, its inputs and their gradient, and what a step took beyond them, in MB."""
    workload = PairWorkload(shape, "cpu")
    step = workload.contender(name)
    small = PairShape(16, shape.D, 16 if shape.m == shape.B else 64 if shape.m else 0)
    PairWorkload(small, "cpu").contender(name)()  # thread pools, workspaces
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    step()
    mb, high = 1 / 2**20, resident("VmHWM")
    matrices = workload.embeddings, workload.bank
    gradients = sum(matrix.grad.nbytes for matrix in matrices if matrix.grad is not None)
    return {
        "process_mb": high * mb,
        "inputs_and_gradients_mb": (sum(matrix.nbytes for matrix in matrices) + gradients) * mb,
        "beyond_mb": (high - before - gradients) * mb,
    }


if __name__ == "__main__":
    contender, *sizes = sys.argv[1:]
    torch.set_num_threads(2)
    print(json.dumps(peak(contender, PairShape(*map(int, sizes)))))
