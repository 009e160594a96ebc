"""Commands on tiny data that are killed, or whose disk fails: each with what it needs, and how it goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.tests.conftest import finding, make_clusters, run_command, save_features, save_photos
from robustdml.audit_report.findings import write_findings
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
    write_findings(given / "labels.csv", [finding(file, file.parent.name) for file in files])


def _training(out: Path, *settings: str) -> Sequence[str]:
    resume = ["--resume"] if (out / "checkpoint.pt").exists() else []
    common = ["--batch-size", "32", "--device", "cpu", "--noise", "symmetric:0.3"]
    return [*ROBUSTDML, "train", *settings, *common, "--out", str(out), *resume]


def _preempted(given: Path, out: Path) -> Sequence[str]:
    return _training(out, "--data", "glyphs", "--method", "proxy-anchor", "--filter", "prism-vmf", "--epochs", "8")


def _train(given: Path, out: Path) -> Sequence[str]:
    return _training(out, "--data", str(given / "features.npz"), "--epochs", "3")


def _audit(given: Path, out: Path) -> Sequence[str]:
    settings = ["--epochs", "2", "--runs", "2", "--device", "cpu"]
    return [*ROBUSTDML, "audit", str(given / "features.npz"), *settings, "--out", str(out)]


def _model(given: Path) -> None:
    """A model, and so many images that what was done of them is kept."""
    save_photos(given / "photographs", classes=4, images=300, size=(12, 12))
    settings = ("--backbone", "untrained", "--finetune", "--image-size", "12", "--epochs", "1", "--device", "cpu")
    settings += ("--method", "proxy-anchor", "--batch-size", "200")
    run_command("train", "--data", given / "photographs", *settings, "--out", given / "model")


def _embed(given: Path, out: Path) -> Sequence[str]:
    files = [str(given / "photographs"), "--out", str(out / "embeddings.npz")]
    return [*ROBUSTDML, "embed", str(given / "model"), *files, "--device", "cpu"]


def _evaluate(given: Path, out: Path) -> Sequence[str]:
    settings = ["--data", str(given / "photographs"), "--out", str(out / "evaluation"), "--device", "cpu"]
    return [*ROBUSTDML, "evaluate", str(given / "model"), *settings]


def _apply(given: Path, out: Path) -> Sequence[str]:
    if (out / "clean").exists():
        return []
    return [*ROBUSTDML, "apply", str(given / "labels.csv"), "--to", str(out / "clean"), "--copy"]


ALL = (
    Scenario("train", _features, _train),
    Scenario("audit", _features, _audit),
    Scenario("cache", _photographs, lambda given, out: ["app.tests.hostile.make_cache", str(given / "photographs")]),
    Scenario("apply", _findings, _apply),
    Scenario("embed", _model, _embed),
    Scenario("evaluate", _model, _evaluate),
    Scenario("preempted", lambda given: None, _preempted, preempted=True),  # The command makes Glyphs
)
SCENARIOS = {one.name: one for one in ALL}
