"""A step over very many classes of which a share is drawn, with Adagrad of the rows drawn: the package and PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor

from robustdml_ops.losses import NormalizedSoftmaxLoss
from robustdml_ops.optim import ProxyAdagrad

from .rivals import normalized_softmax
from .workloads import Workload

RATE, SCALE, EPSILON = 0.1, 16.0, 1e-10
CONTENDERS = [
    f"{way}/softmax, {dtype}" for way in ("robustdml", "pytorch", "compile") for dtype in ("float32", "bfloat16")
]


def step_of(contender: str, workload: Workload, share: float) -> Callable[[], Tensor]:
    """``WAY/softmax, TYPE``: loss, gradient of the embeddings, and Adagrad's step of the rows; the type of proxies.

    PyTorch draws the cheapest way: numbers with repetition, of which the distinct ones count.
    """
    way, dtype = contender.split("/")[0], getattr(torch, contender.rpartition(" ")[2])
    if way == "robustdml":
        return _own_step(workload, dtype, share)
    return _plain_step(workload, dtype, share, way == "compile")


def _own_step(workload: Workload, dtype: torch.dtype, share: float) -> Callable[[], Tensor]:
    shape, X = workload.shape, workload.embeddings
    sampled = {"negative_share": share, "negative_correction": False}
    loss_function = NormalizedSoftmaxLoss(shape.C, shape.D, 1 / SCALE, dtype=dtype, **sampled)
    with torch.no_grad():
        loss_function.W.copy_(workload.proxies.t())
    optimizer = ProxyAdagrad(loss_function, lr=RATE, eps=EPSILON)

    def step() -> Tensor:
        X.grad = None
        loss: Tensor = loss_function(X.to(dtype), workload.labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _plain_step(workload: Workload, dtype: torch.dtype, share: float, is_compiled: bool) -> Callable[[], Tensor]:
    shape, X, y = workload.shape, workload.embeddings, workload.labels
    P = workload.proxies.detach().to(dtype, copy=True)
    sums = torch.zeros(shape.C)
    drawn = round(share * shape.C)
    # The number of distinct classes changes from step to step.
    formula = torch.compile(_loss, dynamic=True) if is_compiled else _loss

    def step() -> Tensor:
        X.grad = None
        others = torch.randint(shape.C, (drawn,)) if share < 1 else torch.arange(shape.C)
        classes = torch.cat([y, others]).unique()
        rows = P[classes].requires_grad_()
        loss: Tensor = formula(X, rows, torch.searchsorted(classes, y))
        loss.backward()
        assert rows.grad is not None
        with torch.no_grad():
            sums[classes] += rows.grad.float().square().mean(1)
            P[classes] = rows - RATE * rows.grad / (sums[classes].sqrt() + EPSILON)[:, None].to(dtype)
        return loss.detach()

    return step


def _loss(X: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    return normalized_softmax(X.to(rows.dtype), rows, places, SCALE)
