"""Commands on tiny data that are killed, or whose disk fails: each with what it needs, and how it goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from robustdml.audit_report.findings import Finding, write_findings

ROBUSTDML = ("robustdml",)  # A module, as after ``python -m``.


@dataclass(frozen=True)
class Scenario:
    """One command.

    Attributes
    ----------
    name : str
        What it is called.
    prepare : callable
        Makes what the command reads in the folder ``given``.
    command : callable
        From ``given`` and the folder ``out`` to the module and the arguments that begin, or go on with what is in
        ``out``; empty where it was done before it was killed, and would refuse to be done again.
    """

    name: str
    prepare: Callable[[Path], object]
    command: Callable[[Path, Path], Sequence[str]]


def _features(given: Path) -> None:
    """Features of 12 training classes and 9 others, a few labels of the first wrong."""
    random = np.random.default_rng(0)
    arrays = {}
    for prefix, samples, classes in (("", 252, 12), ("test_", 123, 9)):
        labels = np.arange(samples) % classes
        centres = random.normal(size=(classes, 20))[labels]
        arrays[f"{prefix}features"] = (centres + 0.6 * random.normal(size=centres.shape)).astype(np.float32)
        arrays[f"{prefix}labels"] = labels
    arrays["labels"][:9] = 3
    np.savez(given / "features.npz", **arrays)


def _photographs(given: Path) -> None:
    random = np.random.default_rng(0)
    for label in range(4):
        folder = given / "photographs" / f"class {label}"
        folder.mkdir(parents=True)
        for number in range(40):
            pixels = random.integers(0, 60, (24, 24, 3)) + 45 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def _findings(given: Path) -> None:
    _photographs(given)
    files = sorted((given / "photographs").rglob("*.png"))
    write_findings(
        given / "labels.csv",
        [Finding(str(file), file.parent.name, 0.9, file.parent.name, 0.9, "right", -1) for file in files],
    )


def _train(given: Path, out: Path) -> Sequence[str]:
    resume = ["--resume"] if (out / "checkpoint.pt").exists() else []
    settings = ["--epochs", "3", "--batch-size", "32", "--device", "cpu", "--noise", "symmetric:0.3"]
    return [*ROBUSTDML, "train", "--data", str(given / "features.npz"), *settings, "--out", str(out), *resume]


def _audit(given: Path, out: Path) -> Sequence[str]:
    settings = ["--epochs", "2", "--runs", "2", "--device", "cpu"]
    return [*ROBUSTDML, "audit", str(given / "features.npz"), *settings, "--out", str(out)]


def _cache(given: Path, out: Path) -> Sequence[str]:
    return ["app.tests.hostile.make_cache", str(given / "photographs")]


def _apply(given: Path, out: Path) -> Sequence[str]:
    if (out / "clean").exists():
        return []
    return [*ROBUSTDML, "apply", str(given / "labels.csv"), "--to", str(out / "clean"), "--copy"]


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("train", _features, _train),
        Scenario("audit", _features, _audit),
        Scenario("cache", _photographs, _cache),
        Scenario("apply", _findings, _apply),
    )
}
