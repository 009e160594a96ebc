"""Wrong labels made on purpose: pure functions of labels, rate and seed that also return what they changed.

A noise is asked for by a text such as ``symmetric:0.5``: a key of `NOISES`, and the share of the samples that get a
wrong label.
"""

from robustdml.noise.registry import NOISES, NoiseSources, apply_noise, noise_rate, parse_noise
from robustdml.noise.symmetric import symmetric

__all__ = [
    "NOISES",
    "NoiseSources",
    "apply_noise",
    "noise_rate",
    "parse_noise",
    "symmetric",
]
