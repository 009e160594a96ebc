"""Sounds of speakers, synthesised: harmonics of a pitch under the resonances of a throat, and breath.

A class is a speaker: a mean pitch, four resonances (formants) and how bright and breathy the voice is. A sample is a
vowel of that speaker, which moves pitch and formants, as the logarithms of its power spectrum.

Source: Klatt, "Software for a cascade/parallel formant synthesizer", JASA 67, 1980: the model, without its details.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from experiments.data.signals import log_spectrum
from experiments.data.splits import divide
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData

_SPEAKERS, _VOWELS = 120, 12
_RATE, _SAMPLES, _WINDOW = 8000, 800, 128
# Mean formants of all speakers and the spread of speakers and of vowels, relative to the formant.
_FORMANTS, _OF_SPEAKER, _OF_VOWEL = np.array([550.0, 1500.0, 2500.0, 3400.0]), 0.12, 0.09
_SEED = 0


def load_sounds(name: str = "sounds") -> RetrievalData:
    """Draw the vowels of all speakers."""
    random = np.random.default_rng(_SEED)
    features = np.stack(
        [_vowel(random, speaker) for speaker in map(_speaker, [random] * _SPEAKERS) for _ in range(_VOWELS)]
    )
    labels = np.repeat(np.arange(_SPEAKERS, dtype=np.int64), _VOWELS)
    return divide(name, Split(features, labels, tuple(f"speaker {number}" for number in range(_SPEAKERS))))


def _speaker(random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    return {
        "pitch": 100 * 2 ** random.uniform(0, 1.2, 1),
        "formants": _FORMANTS * np.exp(_OF_SPEAKER * random.normal(size=4)),
        "widths": random.uniform(60, 250, 4),
        "decay": random.uniform(0.6, 1.6, 1),
        "breath": 10 ** random.uniform(-2.5, -1, 1),
    }


def _vowel(random: np.random.Generator, speaker: dict[str, NDArray[np.float64]]) -> NDArray[np.float32]:
    pitch = float(speaker["pitch"][0] * np.exp(0.08 * random.normal()))
    formants = speaker["formants"] * np.exp(_OF_VOWEL * random.normal(size=4))
    harmonics = pitch * np.arange(1, int(_RATE / 2 / pitch))
    detuned = (harmonics[:, None] - formants) / speaker["widths"]
    strengths = (1 / (1 + detuned**2)).sum(1) / np.arange(1, len(harmonics) + 1) ** speaker["decay"]
    phases = random.uniform(0, 2 * np.pi, len(harmonics))
    time = np.arange(_SAMPLES) / _RATE
    sound = strengths @ np.sin(2 * np.pi * harmonics[:, None] * time + phases[:, None])
    sound += speaker["breath"] * random.normal(size=_SAMPLES)
    return log_spectrum(10 ** random.uniform(-0.5, 0.5) * sound, _WINDOW)


NAMED = {name: NamedData("sounds", partial(load_sounds, name)) for name in ("sounds", "sounds-validation")}
