"""Warns once where the first steps of training change nothing: a class matrix that no optimiser has, a loss that stays.

With very many classes that would take long to see. There the samples tell: they are no nearer to their own proxy than
to that of another sample, or find fewer of their class within the batch than at the start.

Nothing waits for a GPU: numbers are copied to the host beside the work, and read when they have arrived.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustdml_ops.backends.dispatch import is_recorded
from robustdml_ops.engine.labels import are_several
from robustdml_ops.losses.inputs import LossInputs

# Steps until the class matrix has to have moved.
UNMOVED = 100
# Steps until the loss has to have fallen: this many, and as many as show each class some times.
STEPS, SIGHTINGS = 300, 3
# The loss is a mean over the last steps. It has not fallen where it is above this share of that of untrained rows.
AVERAGED, FALLEN = 20, 0.98
# Calls until which samples have to be nearer to their own proxies, in this share of cases (chance: a half). Looked at
# where at least so many can be compared, and the loss itself would tell later than after twice as many calls.
EARLY, NEARER, COMPARED = 220, 0.58, 100
# The share of samples whose nearest one in the batch has their label may fall by this since the first calls, and by so
# many standard errors.
FELL, ERRORS = 0.03, 4
# Steps for which a number on its way to the host is waited for; a NaN never arrives.
PATIENCE = 1000
# Rows whose values are compared.
ROWS = 64


class Watch:
    """Looks at the first calls of a loss in training, until its questions are answered."""

    messages: ClassVar[dict[str, Callable[[Any, Any, int], str | None]]] = {}

    def __init__(self) -> None:
        self.calls, self.last = 0, 0
        self.arriving: dict[str, Tensor] = {}  # numbers on the host, NaN until they are there
        self.over = False

    def look(self, loss_function: Any, inputs: LossInputs) -> None:
        """See the inputs of a call before its loss, which may move the proxies; calls before it were right."""

    def __call__(self, loss_function: Any, inputs: LossInputs, loss: Any) -> None:
        """See one call, with its result: a loss, or what a reducer of the peer makes of it."""
        raise NotImplementedError

    def _send(self, name: str, numbers: Tensor) -> None:
        here = torch.full(numbers.shape, math.nan, dtype=torch.float32, device="cpu", pin_memory=numbers.is_cuda)
        self.arriving[name] = here.copy_(numbers, non_blocking=True)

    def _tell(self, loss_function: Any, last: int) -> None:
        """Warn of what has arrived; all is told ``last`` calls after the first."""
        for name, numbers in list(self.arriving.items()):
            if not numbers.isnan().any():
                del self.arriving[name]
                message = self.messages[name](loss_function, numbers.tolist(), self.last)
                if message is not None:
                    warnings.warn(message, stacklevel=3)
        self.over = self.calls > last + (PATIENCE if self.arriving else 0)


class FirstSteps(Watch):
    """Looks at the calls of a loss with a class matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.seldom = False  # whether a class is met so seldom that the loss itself tells late
        self.rows: Tensor | None = None  # of some classes of the first batch
        self.values: Tensor | None = None  # of these rows, at first
        self.total: Tensor | None = None
        # Hits and samples, (2,) each: own proxies "nearer", and retrieval within the batch at "first" and at "last".
        self.counted: dict[str, Tensor] = {}

    def look(self, loss_function: Any, inputs: LossInputs) -> None:
        """See how near the embeddings are before the loss moves the proxies."""
        embeddings: Any = inputs.embeddings
        labels: Any = inputs.labels
        first, last = 0 < self.calls <= AVERAGED, EARLY - AVERAGED <= self.calls < EARLY
        if not self.seldom or not (first or last) or torch.compiler.is_compiling():
            return
        fits = isinstance(labels, Tensor) and labels.dim() == 1 and len(labels) == len(embeddings)
        if not fits or is_recorded(embeddings.device):
            return
        X, labels = embeddings.detach(), labels.to(embeddings.device, torch.int64)
        found = {"first" if first else "last": _retrieved(X, labels)}
        if last:
            found["nearer"] = _nearer(loss_function, X, labels)
        for name, counts in found.items():
            self.counted[name] = self.counted[name] + counts if name in self.counted else counts

    def __call__(self, loss_function: Any, inputs: LossInputs, loss: Any) -> None:
        """Follow the loss, and some rows of the class matrix."""
        embeddings, labels = inputs.embeddings, inputs.labels
        learns = isinstance(loss, Tensor) and loss.requires_grad and loss_function._class_parameter().requires_grad
        if torch.compiler.is_compiling() or not learns or loss.is_meta or labels is None or are_several(labels):
            return
        if is_recorded(loss.device):  # a graph would repeat the comparison and the copy to the host, and is no step
            return
        self.calls += 1
        if self.calls == 1:
            self._begin(loss_function, len(embeddings), labels)
        elif self.calls == UNMOVED and self.rows is not None and self.values is not None:
            self._send("moved", _matrix(loss_function)[self.rows].ne(self.values).any())
            self.rows = self.values = None
        if self.last - AVERAGED < self.calls <= self.last:
            mean = loss.detach().mean().float() / AVERAGED
            self.total = mean if self.total is None else self.total + mean
            if self.calls == self.last:
                self._send("loss", self.total)
        if self.calls == EARLY and "last" in self.counted:
            self._send("early", _judged(**self.counted))
            self.counted = {}
        self._tell(loss_function, max(self.last, UNMOVED, EARLY))

    def _begin(self, loss_function: Any, samples: int, labels: Tensor) -> None:
        last = STEPS + math.ceil(SIGHTINGS * loss_function.num_classes / max(1, samples))
        self.seldom = last > 2 * EARLY
        one_number = not isinstance(getattr(loss_function, "margin", None), Tensor | nn.Module)
        if hasattr(loss_function, "loss_at") and loss_function.negatives is None and one_number:
            self.last = last
        matrix = _matrix(loss_function)
        if len(matrix) and loss_function._update() is None:  # an optimiser in the sweep moves what it has
            if matrix.dtype.itemsize == 2:
                warnings.warn(_rounded(loss_function, matrix.dtype), stacklevel=2)
            places = loss_function.shards.to_local_labels(labels[:ROWS].to(matrix.device, torch.int64))
            self.rows = places.clamp(0, len(matrix) - 1)
            self.values = matrix[self.rows].clone()


def _matrix(loss_function: Any) -> Tensor:
    matrix: Tensor = loss_function._shard()[0].detach()
    return matrix


def _nearer(loss_function: Any, X: Tensor, labels: Tensor) -> Tensor:
    """How often samples (B, D) are nearer to their own class than to that of the sample half a batch away; of how many.

    On shards of those whose classes are both here.
    """
    matrix, away = _matrix(loss_function), torch.arange(len(X), device=X.device).roll(len(X) // 2)
    if not len(matrix):
        return X.new_zeros(2, dtype=torch.float32)
    places = loss_function.shards.to_local_labels(labels)
    known = (places >= 0) & (places < len(matrix))
    places = torch.where(known, places, 0)
    if loss_function.first_embeddings:  # others begin in this step
        known = known & (loss_function.taken[places] > 0)
    centers = matrix[:, None] if matrix.dim() == 2 else matrix
    own, other = (
        torch.cosine_similarity(X[:, None].float(), centers[rows].float(), dim=2).amax(1)
        for rows in (places, places[away])
    )
    known = known & known[away] & (labels != labels[away])
    return torch.stack([(known & (own > other)).sum(), known.sum()]).float()


def _retrieved(X: Tensor, labels: Tensor) -> Tensor:
    """How often the nearest other sample of the batch (B, D) has a sample's label; of how many with another of it."""
    same = (labels[:, None] == labels).fill_diagonal_(False)
    unit = torch.nn.functional.normalize(X.float(), dim=1)
    nearest = (unit @ unit.t()).fill_diagonal_(-math.inf).argmax(1)
    return torch.stack([same.gather(1, nearest[:, None]).sum(), same.any(1).sum()]).float()


def _judged(last: Tensor, nearer: Tensor, first: Tensor | None = None) -> Tensor:
    """The share of samples that are nearer to their own proxy, 1 if unknown; by how much retrieval fell, or 0."""
    (found, of), (near, compared) = last, nearer
    before, earlier = torch.zeros_like(last) if first is None else first
    p, q = found / of, before / earlier
    error = ((p - p * p) / of + (q - q * q) / earlier).sqrt()
    fell = torch.where((of >= COMPARED) & (earlier >= COMPARED) & (q - p > ERRORS * error), q - p, 0.0)
    return torch.stack([torch.where(compared >= COMPARED, near / compared, 1.0), fell])


def _rounded(loss_function: Any, dtype: torch.dtype) -> str:
    return (
        f".{loss_function.matrix_name} of {type(loss_function).__name__} is {dtype}, and an optimiser that rounds to "
        f"the nearest loses steps below {torch.finfo(dtype).eps / 4:.1g} of a value: train it with an optimiser of "
        "robustdml_ops.optim, which rounds at random, or keep it float32. One that has a float32 copy loses nothing"
    )


def _unmoved(loss_function: Any, moved: float, _: int) -> str | None:
    if moved:
        return None
    return (
        f"{UNMOVED} steps have not moved .{loss_function.matrix_name} of {type(loss_function).__name__}: no optimiser "
        "has it, or its learning rate is 0. Give loss_function.parameters() to the optimiser, as a group of its own; if"
        " it is to stay, call loss_function.requires_grad_(False)"
    )


def _standing(loss_function: Any, found: float, steps: int) -> str | None:
    """Why the loss may stand still, if it does."""
    untrained, floor = loss_function.loss_at(0.0), loss_function.loss_at(1.0)
    if not found > FALLEN * untrained:
        return None
    C, scale = loss_function.num_classes, loss_function._logit_settings()["scale"]
    said = (
        f"after {steps} steps the loss of {type(loss_function).__name__} is {found:.3g}; that of embeddings at right "
        f"angles to their class is {untrained:.3g}, for {C} classes and the scale {scale:.3g}. "
    )
    if floor > untrained / 2:
        return said + (
            f"It cannot fall below {floor:.3g}, where each sample lies on its class and all others are at right "
            f"angles: take a scale of {math.log(C) + 4:.0f} or more"
        )
    return said + (
        f"Look at the learning rates, that of .{loss_function.matrix_name} (usually 100 times the network's) and the "
        "network's own, or begin with a smaller margin or scale"
    )


def _not_learnt(loss_function: Any, found: list[float], _: int) -> str | None:
    nearer, fell = found
    if nearer < NEARER:
        seen = (
            f"samples are nearer to the proxy of their class than to that of another sample in {100 * nearer:.0f} % of "
            "cases, and by chance in 50 %: the network learns nothing from proxies"
        )
    elif fell > FELL:
        seen = (
            f"fewer samples than in the first {AVERAGED} have one of their class as the nearest of the batch, by "
            f"{100 * fell:.0f} points: the network unlearns what it knew for proxies"
        )
    else:
        return None
    return (
        f"after {EARLY} steps of {type(loss_function).__name__} {seen} of {loss_function.num_classes} classes that "
        "began at random, even if the loss falls. Train it on pairs first, as by SupConLoss, and let proxies begin as "
        "embeddings, by start_class_matrix or first_embeddings=; or look at the learning rates"
    )


FirstSteps.messages = {"moved": _unmoved, "loss": _standing, "early": _not_learnt}
