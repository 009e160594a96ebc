"""The native CUDA backends of the class log-sum-exp against eager: on the GPU where there is one, and in emulation."""

import pytest
import torch

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.ops.classes.problem import ClassChunk, ClassProblem, ClassSums, ClassUpstream
from robustdml_ops.ops.classes.sweep import BACKENDS

NATIVE, EAGER = BACKENDS["native"], BACKENDS["eager"]


def run(backend, dtype, device, B, c, pooling, H):
    random = torch.Generator().manual_seed(B + c)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(device, dtype)

    problem = ClassProblem(
        labels=LabelSets.of(torch.randint(2 * c, (B,), generator=random).to(device)),
        scale=normal(2 * c).abs() * 8 if c % 2 else normal(1)[0],
        bias=normal(2 * c).masked_fill_(torch.rand(2 * c, generator=random).to(device) < 0.2, -torch.inf),
        target_bias=0.0,
        exclude_target=True,
        centers=H,
        pooling=pooling,
        gamma=0.2,
        normalize=True,
    )
    S = [(0.3 * normal(c * H, B)).clamp_(-1, 1) for _ in range(2)]
    dlse, dlogit = normal(B), normal(B)
    sums = ClassSums.empty(B, dtype, device)
    for number in range(2):
        backend.class_lse(ClassChunk(S[number].clone(), number * c), problem, sums)
    lse = sums.log().to(dtype)
    upstream = ClassUpstream(lse, dlse, dlogit)
    for number in range(2):
        backend.class_lse_backward(ClassChunk(S[number], number * c), problem, upstream)
    return lse, sums.target, torch.cat(S)


@pytest.mark.parametrize(("pooling", "H"), [("none", 1), ("max", 3), ("softmax", 3)])
@pytest.mark.parametrize(("B", "c"), [(1, 1), (33, 70), (257, 11)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_eager(device, dtype, B, c, pooling, H):
    ours = run(NATIVE, dtype, device, B, c, pooling, H)
    eager = run(EAGER, dtype, device, B, c, pooling, H)
    exact = run(EAGER, torch.float64, device, B, c, pooling, H)
    for name, mine, theirs, truth in zip(("lse", "target", "dS"), ours, eager, exact, strict=True):
        masked = truth == -torch.inf
        assert torch.equal(mine == -torch.inf, masked), name
        mine, theirs, truth = (value.masked_fill(masked, 0) for value in (mine, theirs, truth))
        allowed = 4 * (theirs - truth).abs().max() + 16 * torch.finfo(dtype).eps * (1 + truth.abs().max())
        assert (mine - truth).abs().max() <= allowed, name
