"""Commands on tiny data that are killed, or whose disk fails: each with what it needs, and how it goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.tests.conftest import make_clusters, save_features, save_photos
from robustdml.audit_report.findings import Finding, write_findings
from robustdml.noise import with_wrong_labels

ROBUSTDML = ("robustdml",)  # A module, as after ``python -m``.


@dataclass(frozen=True)
class Scenario:
    """One command."""

    name: str
    prepare: Callable[[Path], object]  # Makes what the command reads in the folder ``given``
    # From ``given`` and the folder ``out`` to the module and the arguments that begin, or go on with what is in
    # ``out``; empty where it was done before it was killed, and would refuse to be done again.
    command: Callable[[Path, Path], Sequence[str]]
    # It gets the signals of a cluster and no kills; what it has cached is kept, as pretraining takes minutes.
    preempted: bool = False


def _features(given: Path) -> None:
    save_features(with_wrong_labels(make_clusters(), "symmetric:0.05", seed=0), given / "features.npz")


def _photographs(given: Path) -> None:
    save_photos(given / "photographs", classes=4, images=40, size=(24, 24))


def _findings(given: Path) -> None:
    _photographs(given)
    files = sorted((given / "photographs").rglob("*.png"))
    write_findings(
        given / "labels.csv",
        [Finding(str(file), file.parent.name, 0.9, file.parent.name, 0.9, "right", -1) for file in files],
    )


def _nothing(given: Path) -> None:
    """Glyphs are made by the command."""


def _preempted(given: Path, out: Path) -> Sequence[str]:
    resume = ["--resume"] if (out / "checkpoint.pt").exists() else []
    settings = ["--epochs", "8", "--batch-size", "32", "--device", "cpu", "--noise", "symmetric:0.3"]
    loss = ["--method", "proxy-anchor", "--filter", "prism-vmf"]
    return [*ROBUSTDML, "train", "--data", "glyphs", *loss, *settings, "--out", str(out), *resume]


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


ALL = (
    Scenario("train", _features, _train),
    Scenario("audit", _features, _audit),
    Scenario("cache", _photographs, _cache),
    Scenario("apply", _findings, _apply),
    Scenario("preempted", _nothing, _preempted, preempted=True),
)
SCENARIOS = {one.name: one for one in ALL}
