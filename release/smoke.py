"""Checks of an installed wheel, run by the Python that has it: ``python smoke.py``.

The doctor compares each op on each backend with float64. These checks compare losses with the references, train with an
optimiser and a filter, and start the benchmarks.
"""

import subprocess
import sys

import torch

from robustdml_ops import losses, python_ref, robust
from robustdml_ops.backends import native_module
from robustdml_ops.backends.dispatch import choose
from robustdml_ops.ops.anchor.sweep import BACKENDS
from robustdml_ops.optim import ProxyAdamW

B, C, D = 32, 70, 24


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and labels."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, D, generator=generator), torch.randint(C, (B,), generator=generator)


def native_serves() -> None:
    """The compiled module is there, and serves the CPU."""
    assert native_module.library is not None
    assert choose(BACKENDS, None, torch.device("cpu"), torch.float32) is BACKENDS["native"]


def losses_are_the_references() -> None:
    """Values and gradients, in float32, within what float32 allows."""
    X, labels = batch()
    pairs = losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5)
    proxies = losses.ProxyAnchorLoss(C, D)
    P = proxies.proxies.detach().double()
    for found, exact in (
        (lambda X: proxies(X, labels), lambda X: python_ref.proxy_anchor_loss(X, P, labels)),
        (
            lambda X: pairs(X, labels % 7),
            lambda X: python_ref.multi_similarity_loss(X, labels % 7, alpha=2, beta=50, base=0.5),
        ),
    ):
        mine, true = X.clone().requires_grad_(), X.double().requires_grad_()
        value, expected = found(mine), exact(true)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
        value.backward()
        expected.backward()
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=1e-4, atol=1e-6)


def training_lowers_the_loss() -> None:
    """Twenty steps of proxies by the optimiser within the sweep, with a filter beside it."""
    X, labels = batch()
    loss_function = losses.ProxyAnchorLoss(C, D)
    optimizer = ProxyAdamW(loss_function, lr=0.1)
    prism = robust.PRISM(C, D, "vmf", threshold="cautious", memory_size=4 * B, vmf_start=5)
    values = []
    for _ in range(20):
        result = prism(X, labels)
        optimizer.zero_grad()
        loss = loss_function(X, labels, sample_weights=result.keep)
        loss.backward()
        optimizer.step()
        prism.enqueue(X, labels, result.keep)
        values.append(loss.item())
    assert values[-1] < 0.5 * values[0], values


def the_benchmarks_are_there() -> None:
    """The benchmarks tell their options, and name the missing extra in one line."""
    for arguments, status, said in ((["--help"], 0, "--only"), ([], 2, "pip install")):
        command = [sys.executable, "-m", "robustdml_ops.bench", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status, done
        assert said in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr


if __name__ == "__main__":
    for check in (native_serves, losses_are_the_references, training_lowers_the_loss, the_benchmarks_are_there):
        check()
        print(f"ok   {check.__doc__}")
