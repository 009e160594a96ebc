"""Samples whose weights are sought, for the ops and for their reference."""

import torch


class Case:
    """Random classes, single ones and gaps in their numbers included, and terms of a made-up model."""

    def __init__(self, N, C, seed, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        self.N = N
        self.X = torch.randn(N, 3, generator=generator, dtype=dtype)
        self.labels = 3 * torch.randint(C, (N,), generator=generator) - 4
        self.w, self.positive, self.negative = torch.rand(3, N, generator=generator, dtype=dtype)

    def terms(self):
        return self.w, self.positive, self.negative, self.labels
