"""Millions of identities whose features are computed when they are asked for: nothing of size N×D is stored.

Every number is a hash of a seed and a place. An identity belongs to a family, whose identities are alike. Its 2 to 6
samples scatter about it; directions that say nothing of the identity have a larger spread. A random matrix mixes all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FEATURES, INFORMATIVE, NUISANCE = 96, 24, 48
FAMILY = 16  # identities
OWN, SPREAD, LOUDNESS = 0.7, 0.5, 0.75  # standard deviations: of identity in family, sample in identity, nuisance
FEWEST, MOST = 2, 6  # samples
KINDS = ("none", "symmetric", "family")


@dataclass(frozen=True)
class Samples:
    """Samples of some identities, and the labels that they are given."""

    identities: Tensor  # (N,) int64
    labels: Tensor  # (N,) int64, of which some are wrong
    seed: int

    def features(self, rows: Tensor) -> Tensor:
        """Features (n, 96) float32 of the samples ``rows`` (n,)."""
        who, samples = self.identities[rows], rows + (self.identities[0] << 20)
        family = _normal(self.seed, 0, who // FAMILY, INFORMATIVE)
        own = _normal(self.seed, 1, who, INFORMATIVE)
        noise = _normal(self.seed, 2, samples, INFORMATIVE + NUISANCE)
        inner = torch.cat([family + OWN * own + SPREAD * noise[:, :INFORMATIVE], LOUDNESS * noise[:, INFORMATIVE:]], 1)
        mixing = _normal(0, 3, torch.arange(INFORMATIVE + NUISANCE), FEATURES)
        return inner @ mixing / FEATURES**0.5


def draw_identities(
    count: int, seed: int, *, held_out: bool = False, noise: str = "none", rate: float = 0.0
) -> Samples:
    """Draw 2 to 6 samples of each identity; a share ``rate`` has the label of any other identity, or of the family's.

    Identities that are held out are of other families than any that are not.
    """
    identities = torch.arange(count) + (held_out << 40)
    numbers = _uniform(seed, 4, identities)
    samples = torch.repeat_interleave(torch.arange(count), FEWEST + (numbers * (MOST - FEWEST + 1)).long())
    places = torch.arange(len(samples))
    wrong, other = _uniform(seed, 5, places) < rate, _uniform(seed, 6, places)
    if noise == "family":
        first = samples // FAMILY * FAMILY
        size = (count - first).clamp(max=FAMILY)
    else:
        first, size = torch.zeros_like(samples), torch.full_like(samples, count)
    moved = first + (samples - first + 1 + (other * (size - 1)).long()) % size
    return Samples(identities[samples], torch.where(wrong, moved, samples), seed)


def _uniform(seed: int, stream: int, places: Tensor) -> Tensor:
    """Numbers in [0, 1), float64."""
    return _shifted(_words(seed, stream, places), 11).double() * 2.0**-53


def _normal(seed: int, stream: int, places: Tensor, width: int) -> Tensor:
    """Rows of standard normal numbers, (n, width) float32, by Box and Muller."""
    half = width // 2
    words = _words(seed, stream, places[:, None] * half + torch.arange(half))
    radius = (-2 * ((_shifted(words, 40) + 1).float() * 2.0**-24).log()).sqrt()
    angle = (words & 0xFFFFFF).float() * (2.0**-24 * 2 * torch.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)


def _words(seed: int, stream: int, places: Tensor) -> Tensor:
    """Words of a stream of a seed at ``places`` int64: SplitMix64, whose multiplications wrap around."""
    key = _mixed(_mixed(torch.tensor(seed)) + stream)
    return _mixed((places + 1) * -0x61C8864680B583EB + key)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted to the right with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
