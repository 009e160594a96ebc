"""The contenders on pairs. ``python -m bench.pair_workloads NAME B D m`` prints a step's peak memory on the CPU."""

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from robustdml_ops.engine.similarity_chunks import chunk_rows
from robustdml_ops.ops import ABSENT, pair_lse

from . import rivals
from .device import DEVICE
from .families import FAMILIES, LIBRARIES
from .memory import resident
from .shapes import Shape
from .workloads import Workload, under_autocast

MS = {"alpha": 2.0, "beta": 50.0, "base": 0.5}
TOWERS = ("info-nce", "sigmoid")  # of a batch and another view of it, the bank


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

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """The bank's rows and labels, if there is one."""
        return (self.bank, self.bank_labels) if self.shape.m else ()

    def contender(self, name: str) -> Callable[[], list[Tensor]]:
        """The step of ``<who>/<family>``: value and gradients; the value alone where it ends in ``sweep``."""
        who, _, what = name.partition("/")
        if what == "sweep":
            return lambda: list(pair_lse(self.embeddings.detach(), self.labels, **MS, epsilon=0.1))
        towers = what in TOWERS
        loss, parameters = self.loss(who, what, towers)
        return self.loss_and_gradients(loss, towers, parameters)

    def loss_and_gradients(
        self, loss: Callable[[], Tensor], towers: bool, parameters: Iterable[Tensor] = ()
    ) -> Callable[[], list[Tensor]]:
        """A training step: the loss, and the gradient of the batch, or of both towers."""
        matrices = [self.embeddings, self.bank.requires_grad_()] if towers else [self.embeddings]
        leaves = [*matrices, *parameters]
        evaluate = under_autocast(loss, self.embeddings.device) if self.amp else loss

        def step() -> list[Tensor]:
            for leaf in leaves:
                leaf.grad = None
            value = evaluate()
            value.backward()
            return [value, *(matrix.grad for matrix in matrices)]

        return step

    def loss(self, who: str, what: str, towers: bool) -> tuple[Callable[[], Tensor], Iterable[Tensor]]:
        """The loss, and the parameters that it has."""
        X, y = self.embeddings, self.labels
        recorded, who = who == "recorded", "robustdml" if who == "recorded" else who
        if composed := {"miner's pairs": self.of_mined, "queue": self.of_queue}.get(what):
            return composed(who), ()
        if who == "pml" and what in ("ms", "memory", "info-nce"):
            return self.of_peer(what), ()
        kind, *words = what.split()
        if who not in LIBRARIES:
            formula, others = FAMILIES[kind].rival(who), (self.bank,) if towers else (y, *self.memory)
            return lambda: formula(X, *others), ()
        module = FAMILIES[kind].module(who, X.device, **({"reduction": "none"} if words else {}))
        given = (X, self.bank.requires_grad_()) if towers else (X, y, None, *self.memory)
        called = partial(module.recorded, *given) if recorded else None
        function = module if called is None else (under_autocast(called, X.device) if self.amp else called)()

        def loss() -> Tensor:
            found: Tensor = function(*given)
            return found.mean() if found.dim() else found

        return loss, module.parameters()

    def related(self, kind: str, what: str) -> Callable[[], list[Tensor]]:
        """The step of ours with "ids", two samples each, or "labels", up to three a sample; "observed"; or "plain"."""
        X, y, device = self.embeddings, self.labels, self.embeddings.device
        module, more = FAMILIES[kind].module("robustdml", device), dict[str, Tensor]()
        if what == "ids":
            more["sample_ids"] = torch.arange(len(X), device=device) // 2
        if what == "labels":
            others = torch.randint(int(y.max()) + 1, (len(X), 2), device=device) + len(X)
            others[:, 1] = torch.where(torch.arange(len(X), device=device) % 2 == 0, ABSENT, others[:, 1] + len(X))
            y = torch.cat([y[:, None], others], dim=1)

        def loss() -> Tensor:
            with module.observed() if what == "observed" else nullcontext():
                found: Tensor = module(X, y, **more)
            return found

        return self.loss_and_gradients(loss, towers=False)

    def of_peer(self, kind: str) -> Callable[[], Tensor]:
        """A loss that pytorch-metric-learning has in parts."""
        from pytorch_metric_learning import losses, miners

        X, y = self.embeddings, self.labels
        if kind == "ms":
            loss, miner = losses.MultiSimilarityLoss(**MS), miners.MultiSimilarityMiner(0.1)
            return lambda: loss(X, y, miner(X, y))
        if kind == "memory":
            loss = FAMILIES["contrastive"].module("pml", X.device)
            return lambda: loss(X, y) + loss(X, y, None, *self.memory)
        loss, place = losses.NTXentLoss(), torch.arange(len(X), device=X.device)
        sides = (X, place, None, self.bank, place.clone()), (self.bank, place, None, X, place.clone())
        return lambda: (loss(*sides[0]) + loss(*sides[1])) / 2

    def of_mined(self, who: str) -> Callable[[], Tensor]:
        """Pairs of pytorch-metric-learning's miner, mined beforehand."""
        from pytorch_metric_learning import miners

        X, y = self.embeddings, self.labels
        found = miners.MultiSimilarityMiner(0.1)(X, y)
        if who in LIBRARIES:
            loss = FAMILIES["multi-similarity"].module(who, X.device)
            return lambda: loss(X, y, found)
        listed = rivals.listed_multi_similarity
        formula = rivals.compiled(listed) if who == "compile" else listed
        return lambda: formula(X, *found)

    def of_queue(self, who: str) -> Callable[[], Tensor]:
        """The peer's memory around its loss, or ours."""
        from pytorch_metric_learning import losses

        X, y = self.embeddings, self.labels
        loss = FAMILIES["multi-similarity"].module(who, X.device)
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


def workload_of(kind: str, shape: Shape, chunks: int = 1, device: str = "cpu") -> Workload | PairWorkload:
    """Small inputs of a family: ``chunks`` times the classes of a shape; or times the samples, where there are none."""
    family, B = FAMILIES[kind], shape.B * chunks
    if family.classes:
        return Workload(replace(shape, C=shape.C * family.centers * chunks), device)
    return PairWorkload(PairShape(B, shape.D, B if kind in TOWERS else 0), device)


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
