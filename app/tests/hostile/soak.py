"""Trains for some minutes on one to three processes that are killed, ended, stopped and started again.

``python -m app.tests.hostile.soak --minutes 60 --seed 0`` starts torchrun again and again, each time on one to three
processes and with a trouble: SIGKILL of one process, SIGTERM or SIGINT of the job, SIGUSR1 of one process, a disk that
is full from a random call on, or a process that stops for some seconds. The clock of a third of the jobs jumps by a day
to and fro, and every other job saves within its epochs. After each job the
checkpoint has to be whole and to hold what was there before; after a signal, all steps that were taken. In the end a
job trains to the end of its epoch, the history has every epoch once, and each loss is that of an undisturbed run of one
process, to rounding.
"""

import argparse
import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from app.tests.conftest import make_split, save_features
from app.tests.hostile.kill import DAY, note_step, surroundings
from robustdml.cli import main as robustdml
from robustdml.data import RetrievalData
from robustdml.plain_files import read_plain
from robustdml.settings import SettingsFile
from tests.subprocesses import ROOT

SAMPLES, CLASSES, BATCH = 6000, 100, 60
STEPS = SAMPLES // BATCH
TROUBLES = ("SIGKILL of one", "SIGTERM of the job", "SIGUSR1 of one", "SIGINT of the job", "full disk", "slow process")
SAVED = "which is saved; --out"
TOLD = (SAVED, "no space left", "robustdml train: interrupted; ")
# Largest difference of an epoch's loss, relative, between numbers of processes.
ROUNDING = 1e-3
# Seconds until processes have started, and until a job has ended: many, for machines that are busy.
TO_START, TO_END = 900, 300


def work() -> int:
    """Be a process of a job: leave its number in a file, note the steps, and train."""
    (Path(os.environ["HOSTILE_STEPS"]).parent / f"process-{os.environ['RANK']}").write_text(str(os.getpid()))
    SettingsFile.step = note_step
    return robustdml(sys.argv[1:])


@dataclass
class Soak:
    """The run in a folder, what was done to it, and what went wrong."""

    folder: Path
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out, self.data = self.folder / "run", self.folder / "features.npz"
        self.steps, self.said = self.folder / "steps", self.folder / "said"
        self.environment = os.environ | {
            "ROBUSTDML_CACHE": str(self.folder / "cache"),
            "HOSTILE_STEPS": str(self.steps),
            "HOSTILE_FOLDER": str(self.out),
        }
        train, test = make_split(SAMPLES, CLASSES, 32, 1, 1.0), make_split(600, 60, 32, 2, 1.0)
        save_features(RetrievalData("clusters", train, test), self.data)

    def start(self, out: Path, processes: int, epochs: int, *options: str, **changes: str) -> subprocess.Popen[bytes]:
        """Start torchrun; the run begins, or goes on."""
        for file in self.folder.glob("process-*"):
            file.unlink()
        self.steps.write_text("")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command += [f"--master-port={port}", "--shutdown-timeout=10", "-m", "app.tests.hostile.soak", "train"]
        command += ["--data", str(self.data), "--method", "normalized-softmax", "--noise", "symmetric:0.3"]
        command += ["--batch-size", str(BATCH), "--device", "cpu", "--epochs", str(epochs), "--out", str(out)]
        command += ["--learning-rate", "1e-4", *options, *(["--resume"] if (out / "checkpoint.pt").exists() else [])]
        with self.said.open("wb") as said:
            return subprocess.Popen(
                command, stdout=said, stderr=said, cwd=ROOT, env=self.environment | changes, start_new_session=True
            )

    def position(self) -> int:
        """Steps that the checkpoint holds; 0 without one."""
        if not (self.out / "checkpoint.pt").exists():
            return 0
        state = read_plain(self.out / "checkpoint.pt", "checkpoint", checked=True)["state"]
        return len(state["history"]) * STEPS + state["under_way"]["steps"]

    def job(self) -> None:
        """Run a job until its trouble has ended it, and look at what it leaves."""
        trouble, processes, before = self.chance.choice(TROUBLES), self.chance.randint(1, 3), self.position()
        options = ["--checkpoint-every", "2s"] if self.chance.random() < 0.5 else []
        changes = {"HOSTILE_CLOCK": str(self.chance.choice((-DAY, 0, DAY)))}
        if trouble == "full disk":
            changes |= {"HOSTILE_CALL": str(self.chance.randint(1, 60)), "HOSTILE_ERROR": str(errno.ENOSPC)}
        job = self.start(self.out, processes, 10**6, *options, **changes)
        files = [self.folder / f"process-{rank}" for rank in range(processes)]
        self.wait(job, lambda: all(file.exists() and file.read_text() for file in files), TO_START)
        if self.chance.random() < 0.8:  # The others are struck while they prepare.
            self.wait(job, lambda: bool(self.steps.read_text()), TO_START)
        self.wait(job, lambda: False, self.chance.uniform(0, 8))
        chosen = self.chance.choice(files)
        if job.poll() is None:
            self.strike(trouble, job, int(chosen.read_text()))
        if not self.wait(job, lambda: False, TO_END):
            self.expect(False, f"{trouble}: did not end within {TO_END} s")
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        self.done[trouble] += 1
        self.done[f"on {processes}"] += 1
        told, taken = self.said.read_text(errors="replace"), len(self.steps.read_text().split())
        after = self.position()
        self.done["steps repeated"] += before + taken - after
        self.expect(before <= after <= before + taken, f"{trouble}: {before} steps, {taken} taken, {after} saved")
        if SAVED in told:
            self.expect(after == before + taken, f"{trouble}: {before} steps, {taken} taken, {after} saved")
        told_or_early = any(words in told for words in TOLD) or not taken
        self.expect(told_or_early or trouble == "SIGKILL of one", f"{trouble} is not told")

    def strike(self, trouble: str, job: subprocess.Popen[bytes], one: int) -> None:
        """Send the signals of a trouble."""
        if trouble == "SIGKILL of one":
            os.kill(one, signal.SIGKILL)
        elif trouble == "SIGUSR1 of one":
            os.kill(one, signal.SIGUSR1)
        elif trouble == "SIGINT of the job":  # Ctrl-C
            os.killpg(job.pid, signal.SIGINT)
        else:
            if trouble == "slow process":
                os.kill(one, signal.SIGSTOP)
                time.sleep(self.chance.uniform(1, 5))
                os.kill(one, signal.SIGCONT)
                self.wait(job, lambda: False, self.chance.uniform(0, 3))
            job.terminate()

    def wait(self, job: subprocess.Popen[bytes], reached: Callable[[], bool], seconds: float) -> bool:
        """Wait for a moment; True where the job has ended before."""
        until = time.monotonic() + seconds
        while job.poll() is None and time.monotonic() < until and not reached():
            time.sleep(0.02)
        return job.poll() is not None

    def end(self) -> float:
        """End the last epoch, and compare with an undisturbed run: the largest difference of a loss."""
        epochs = self.position() // STEPS + 1
        histories = []
        for out, processes in ((self.out, 3), (self.folder / "undisturbed", 1)):
            job = self.start(out, processes, epochs)
            job.wait()
            self.expect(job.returncode == 0, f"{out.name} ended with {job.returncode}")
            histories.append([json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()])
        for history in histories:
            self.expect([record["epoch"] for record in history] == list(range(1, epochs + 1)), "epochs are missing")
        losses = np.array([[record["loss"] for record in history] for history in histories])
        difference = float((np.abs(losses[0] - losses[1]) / losses[1]).max())
        self.expect(difference < ROUNDING, f"losses differ by {difference:.1e}")
        self.done["epochs"] = epochs
        return difference

    def expect(self, right: bool, otherwise: str) -> None:
        """Note what is wrong."""
        if not right:
            self.wrong.append(otherwise)
            print(f"WRONG {otherwise}\n{self.said.read_text(errors='replace')[-3000:]}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(temporary)
        os.environ |= surroundings(folder)
        soak, until = Soak(folder, random.Random(given.seed)), time.monotonic() + 60 * given.minutes
        while time.monotonic() < until:
            soak.job()
        difference = soak.end()
    print(f"{dict(soak.done)}, losses differ by {difference:.1e}, {len(soak.wrong)} wrong")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(work() if sys.argv[1:2] == ["train"] else main())
