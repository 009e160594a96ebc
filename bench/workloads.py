"""The contenders over proxies: each runs one loss with both gradients, into fresh gradient memory."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.engine.similarity_chunks import chunk_rows
from robustdml_ops.ops import class_lse, nearest, similarity

from .device import DEVICE
from .families import FAMILIES, LIBRARIES
from .shapes import Shape

HIDDEN = 512  # width of the confidence head in Smooth Proxy-Anchor
DROPPED = 0.2  # cosine above which a negative is left out
# Options of a loss by words behind its name; others choose what it is called with.
OPTIONS: dict[str, dict[str, Any]] = {
    "dropped": {"drop_similar_negatives": DROPPED},
    "own": {"drop_similar_negatives": "own"},
    "none": {"reduction": "none"},
}


def under_autocast(loss: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The loss with products of bfloat16."""

    def evaluate() -> Any:
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            return loss()

    return evaluate


class Workload:
    """Inputs of one shape, and every contender that runs on them; ``amp``: under autocast to bfloat16."""

    def __init__(
        self, shape: Shape, device: str = DEVICE, dtype: torch.dtype = torch.float32, amp: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.shape, self.device, self.amp = shape, torch.device(device), amp
        B, C, D = shape.B, shape.C, shape.D
        self.embeddings = torch.randn(B, D, device=device, dtype=dtype, requires_grad=True)
        self.proxies = nn.Parameter(torch.randn(C, D, device=device, dtype=dtype))
        self.labels = torch.randint(C, (B,), device=device)

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """A confidence head that is sure of one class in a hundred, give or take."""
        B, C = self.shape.B, self.shape.C
        new = {"device": self.device}
        return torch.randn(B, HIDDEN, **new), torch.randn(C, HIDDEN, **new) / HIDDEN**0.5, torch.full((C,), -4.5, **new)

    @cached_property
    def confidences(self) -> Tensor:
        """The same, as a matrix (B, C)."""
        hidden, weight, bias = self.factors
        return torch.sigmoid(hidden @ weight.t() + bias)

    @cached_property
    def columns(self) -> nn.Parameter:
        """The proxies as (D, C), a column for each class, as losses with a margin store them."""
        return nn.Parameter(self.proxies.detach().t().contiguous())

    @cached_property
    def margins(self) -> Tensor:
        """A margin for each sample."""
        return torch.linspace(0.2, 0.4, self.shape.B, device=self.device)

    def loss_and_gradients(self, loss: Callable[[], Tensor], *parameters: nn.Parameter) -> Callable[[], list[Tensor]]:
        """A training step, ``zero_grad(set_to_none=True)``, forward, backward: the loss and two gradients."""
        leaves = [self.embeddings, *(parameters or [self.proxies])]
        evaluate = under_autocast(loss, self.device) if self.amp else loss

        def step() -> list[Tensor]:
            for leaf in leaves:
                leaf.grad = None
            value = evaluate()
            value.backward()
            return [value, leaves[0].grad, leaves[1].grad]

        return step

    def contender(self, name: str) -> Callable[[], list[Tensor]]:
        """The step of ``<who>/<family> <words>``: ours, ours recorded, the peer's, or its formula; words of OPTIONS."""
        who, _, what = name.partition("/")
        recorded, who = who == "recorded", "robustdml" if who == "recorded" else who
        kind, *words = what.split()
        X, P = self.embeddings, self.proxies
        if kind == "similarity":
            return lambda: [similarity(X.detach(), P.detach())]
        if kind == "nearest":
            queries = P.detach()[: len(P) // 5]
            return lambda: list(nearest(queries, queries, 10, exclude_self=True))
        family = FAMILIES[kind]
        target = self.target(words) if set(words) - {"observed"} else self.labels % (len(P) // family.centers)
        if who not in LIBRARIES:
            formula = family.rival(who)
            return self.loss_and_gradients(lambda: formula(X, P, target))
        options = {key: value for word in words for key, value in OPTIONS.get(word, {}).items()}
        module = family.module(who, self.device, *P.shape, **options)
        matrix = next(name for name in ("proxies", "W", "fc") if hasattr(module, name))
        setattr(module, matrix, P if matrix == "proxies" else self.columns)
        others = [parameter for name, parameter in module.named_parameters() if name != matrix]
        given = {"margins": self.margins} if "margins" in words else {}
        called = partial(module.recorded, X, target, **given) if recorded else None
        function = module if called is None else (under_autocast(called, self.device) if self.amp else called)()

        def loss() -> Tensor:
            found: Tensor = function(X, target, **given)
            return found.sum() if found.dim() else found

        def observed() -> Tensor:
            with module.observed():
                return loss()

        return self.loss_and_gradients(observed if "observed" in words else loss, getattr(module, matrix), *others)

    def target(self, words: list[str]) -> Any:
        """What a loss with such words takes in place of labels."""
        if "two" in words:
            return torch.stack([self.labels, (self.labels + 1) % self.shape.C], 1)
        return self.confidences if "dense" in words else self.factors if "factored" in words else self.labels

    @cached_property
    def densities(self) -> tuple[Tensor, Tensor]:
        """A scale and a bias for each class, as a filter's densities have them."""
        C = self.shape.C
        return torch.rand(C, device=self.device), torch.randn(C, device=self.device)

    def log_p_clean(self, backend: str | None = None) -> Tensor:
        """The no-gradient pass of a filter, over proxies that are not normalised."""
        X, P, (scale, bias) = self.embeddings.detach(), self.proxies.detach(), self.densities
        lse, target = class_lse(X, P, self.labels, scale=scale, bias=bias, normalize_proxies=False, backend=backend)
        return target - lse

    def products(self, sweeps: int = 1, logits: int = 0, gradients: bool = True) -> Callable[[], None]:
        """The floor: the products alone by chunks, ``sweeps`` times S and ``logits`` times the confidence head's.

        Under autocast those that PyTorch has: of bfloat16, rounded to bfloat16.
        """
        B, C, D = self.shape.B, self.shape.C, self.shape.D
        X, P = (M.detach().bfloat16() if self.amp else M.detach() for M in (self.embeddings, self.proxies))
        rows = min(C, chunk_rows(C, B + 2 * D, self.device))
        S, dX = X.new_empty(rows, B), torch.zeros_like(X)
        hidden, weight, _ = self.factors if logits else (X, P, None)
        dP = torch.zeros_like(P) if gradients else P

        def step() -> None:
            for first in range(0, C, rows):
                last = min(C, first + rows)
                s = S[: last - first]
                for _ in range(logits):
                    torch.mm(weight[first:last], hidden.t(), out=s)
                for _ in range(sweeps):
                    torch.mm(P[first:last], X.t(), out=s)
                if not gradients:
                    continue
                dX.addmm_(s.t(), P[first:last])
                torch.mm(s, X, out=dP[first:last])

        return step

    def flops(self, sweeps: int = 1, logits: int = 0, gradients: bool = True) -> float:
        """Floating-point operations of :meth:`products`."""
        B, C, D = self.shape.B, self.shape.C, self.shape.D
        return 2.0 * B * C * (D * (2 * gradients + sweeps) + HIDDEN * logits)

    def bytes(self, confidences: int = 0) -> float:
        """Least traffic: P read, dP written, and the B×C confidences read ``confidences`` times."""
        return 4.0 * (2 * self.shape.C * self.shape.D + confidences * self.shape.B * self.shape.C)
