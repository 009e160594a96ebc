"""Random cases for the tests of the reference: small, float64, with the awkward sizes left in."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

few = settings(max_examples=15, deadline=None, derandomize=True)


class Case:
    """A batch, proxies, labels, confidences and weights of odd sizes. Some weights may be 0, some classes empty."""

    def __init__(self, B, C, D, seed, zero_weights):
        random = torch.Generator().manual_seed(seed)
        self.X = torch.randn(B, D, generator=random, dtype=torch.float64)
        self.P = torch.randn(C, D, generator=random, dtype=torch.float64)
        self.y = torch.randint(C, (B,), generator=random)
        self.c = torch.rand(B, C, generator=random, dtype=torch.float64)
        self.m = 0.05 + 0.3 * torch.rand(C, generator=random, dtype=torch.float64)
        self.v = 0.2 + torch.rand(B, generator=random, dtype=torch.float64)
        if zero_weights:
            self.v[torch.rand(B, generator=random) < 0.4] = 0


cases = st.builds(
    Case,
    B=st.integers(0, 7),
    C=st.integers(1, 5),
    D=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    zero_weights=st.booleans(),
)


def leaves(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def assert_same(ours, expected, tolerance=1e-12):
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
