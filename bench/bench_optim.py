"""Steps of an optimiser within the sweep: against backward and torch's fused AdamW, and against the products alone."""

from itertools import product

import pytest
import torch

from robustdml_ops.optim import ProxyAdamW

from .optimizer_steps import LOSSES, step_of
from .workloads import Shape, Workload

LARGE, WIDE = Shape(256, 100_000, 128), Shape(256, 20_000, 512)


def check(kind: str) -> None:
    """A step within the sweep agrees with torch's at a small size."""
    ours, theirs = (LOSSES[kind](3000, 32) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    workload = Workload(Shape(64, 3000, 32))
    fused, plain = ProxyAdamW(ours, lr=1e-2), torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for loss_function, optimizer in ((ours, fused), (theirs, plain)):
        loss_function(workload.embeddings, workload.labels).backward()
        optimizer.step()
    for mine, exact in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", LOSSES)
def test_within_the_sweep_against_after_it(timed, kind):
    """The floor is the loss, its backward, and ``torch.optim.AdamW(fused=True)``."""
    check(kind)
    workload = Workload(LARGE)
    timed(
        step_of(f"within/{kind}/adamw", workload),
        step_of(f"after/{kind}/adamw", workload),
        group=f"AdamW within the sweep over AdamW after it, {LARGE}",
        contender=f"robustdml/{kind} adamw",
    )


@pytest.mark.parametrize("rule", ["adamw", "adamw bfloat16", "adamw of two bytes", "sgd", "adagrad"])
def test_within_the_sweep_against_the_products(timed, rule):
    workload = Workload(LARGE)
    timed(
        step_of(f"within/proxy-anchor/{rule}", workload),
        workload.products(),
        group=f"a step within the sweep over the three products, {LARGE}",
        contender=f"robustdml/proxy-anchor {rule}",
    )


@pytest.mark.parametrize("kind", LOSSES)
def test_two_bytes_against_float32(timed, kind):
    """AdamW with proxies and moments in bfloat16; the floor is the same step in float32."""
    workload = Workload(WIDE)
    timed(
        step_of(f"within/{kind}/adamw of two bytes", workload),
        step_of(f"within/{kind}/adamw", workload),
        group=f"AdamW of two bytes over float32, {WIDE}",
        contender=f"robustdml/{kind} two bytes",
    )


@pytest.mark.parametrize(
    ("classes", "D", "rule"),
    [
        *product([100_000, 1_000_000], [128], ["adamw", "adamw bfloat16", "adamw of two bytes"]),
        (10_000_000, 128, "adamw of two bytes"),
        (2_000_000, 64, "adagrad of two bytes"),
    ],
)
def test_memory(in_own_process, classes, D, rule):
    """Beyond proxies and moments, and in all."""
    name = "Adagrad" if rule.startswith("adagrad") else "AdamW"
    group = f"memory of {name} within the sweep, C={classes:.0e} D={D}"
    in_own_process("optimizer_steps", 256, classes, D, rule, group=group, contender=rule)
