"""Kills commands at random moments, lets them go on, and holds what they leave against an undisturbed run, bit for bit.

``python -m app.tests.hostile.kill --kills 200 --faults 60 --signals 50 --seed 0`` takes all commands of
`app.tests.hostile.scenarios` in turn. Half of the kills come at a random time, half at a random write, fsync, rename or
unlink of the command, a write after half of its bytes. A fault is a disk that from a random write on is full, over
quota, broken or read-only, or that refuses renames: the command has to end with one line that names a file. After each
kill every file that has its own name must be whole; and after all of them the command goes on, on a clock that is a day
off, and must end with the same files as the undisturbed run: none missing, none left over, every number the same but
times and memory. SIGTERM or SIGUSR1 at a random time ends a training run with the status that is queued again; of all
parts of the run no step may be lost or done twice.

Each process is forked from this one, which has imported everything: kills shall not come while PyTorch is imported.
"""

import argparse
import ctypes
import errno
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from app.tests.hostile.outcomes import check_whole, outcome
from app.tests.hostile.scenarios import SCENARIOS, Scenario
from robustdml.cli import COMMANDS
from robustdml.run.preemption import EX_TEMPFAIL, SIGNALS
from robustdml.settings import SettingsFile
from tests.subprocesses import ROOT

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EXDEV)
DAY = 86_400
# Seconds after which a command is held to hang.
PATIENCE = 600


def surroundings(folder: Path) -> dict[str, str]:
    """The environment with the library that processes forked from this one are to have."""
    library = folder / "at_call.so"
    source = Path(__file__).with_name("at_call.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    # One thread: of a process with several only one would be forked.
    return {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'app'}"}


class Ended(NamedTuple):
    """A process that has ended."""

    status: int  # Negative for a signal
    told: str  # On stderr


def run_forked(
    command: Sequence[str], said: Path, moment: float | None = None, number: int = signal.SIGKILL, **changes: str
) -> Ended:
    """Run a module in a process group of its own, and send that a signal after ``moment`` seconds."""
    process = multiprocessing.get_context("fork").Process(target=_become, args=(command, said, changes))
    process.start()
    os.setpgid(process.pid, process.pid)  # As the process does itself: a signal may come before it has.
    process.join(PATIENCE if moment is None else moment)
    for last in (number, signal.SIGKILL):
        if process.exitcode is None:
            os.killpg(process.pid, last)
            process.join(PATIENCE)
    return Ended(process.exitcode, said.read_text(errors="replace"))


def _become(command: Sequence[str], said: Path, changes: dict[str, str]) -> None:
    os.setpgid(0, 0)
    for stream, path in ((1, Path(os.devnull)), (2, said)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.update(changes)
    sys.argv = list(command)
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    finally:
        ctypes.CDLL(None).tell_count()


@dataclass
class Trial:
    """A scenario in a folder of its own, with the outcome of its undisturbed run; what was done, and went wrong."""

    scenario: Scenario
    folder: Path
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.given = self.folder / "given"
        self.given.mkdir(parents=True)
        self.scenario.prepare(self.given)
        self.steps = self.folder / "steps"
        counts = self.folder / "counts"
        for _ in range(1 + self.scenario.preempted):  # The second time all is cached.
            self.anew()
            began = time.monotonic()
            done = self.run(HOSTILE_COUNT=str(counts))
            assert done.status == 0, done.told
            self.seconds = time.monotonic() - began
        self.all_steps = sorted(self.steps.read_text().split())
        self.calls = max(map(int, counts.read_text().split()))
        self.undisturbed = outcome(self.work)

    def anew(self) -> None:
        """Forget all that was made."""
        self.work = self.folder / "work"
        shutil.rmtree(self.work, ignore_errors=True)
        self.out = self.work / "out"
        self.out.mkdir(parents=True)
        self.steps.write_text("")

    def run(self, moment: float | None = None, number: int = signal.SIGKILL, **changes: str) -> Ended:
        """Begin, or go on; to the end, or until it gets a signal."""
        command = self.scenario.command(self.given, self.out)
        if not command:
            return Ended(0, "")
        cache = (self.given if self.scenario.preempted else self.work) / "cache"
        places = {"ROBUSTDML_CACHE": str(cache), "HOSTILE_FOLDER": str(self.work), "HOSTILE_STEPS": str(self.steps)}
        return run_forked(command, self.folder / "said", moment, number, **places | changes)

    def kill_once(self) -> bool:
        """Start and kill; False where it ended before."""
        if self.chance.random() < 0.5:
            call = self.chance.randint(1, self.calls)
            kind, how = "at a call", f"call {call} of {self.calls}"
            done = self.run(HOSTILE_CALL=str(call))
        else:
            moment = self.chance.uniform(0, self.seconds)
            kind, how = "at a time", f"{moment:.2f} s of {self.seconds:.2f}"
            done = self.run(moment)
        if done.status == -signal.SIGKILL:
            self.kills[kind] += 1
            self.check(f"killed at {how}", lambda: check_whole(self.work))
            return True
        self.expect(done.status == 0, f"was to be killed at {how}, ended with {done.status}: {done.told}")
        return False

    def end_once(self) -> bool:
        """Start, and ask to end; False where it ended before."""
        number, moment = self.chance.choice(SIGNALS), self.chance.uniform(0, self.seconds)
        done = self.run(moment, number)
        if done.status == 0:
            return False
        saved = (self.out / "checkpoint.pt").exists()
        way_on = "--resume goes on from the last checkpoint" if saved else "the same command starts anew"
        # Before the command has read its arguments nothing takes the signal.
        at_once = done.status == -number
        self.signals["before its start" if at_once else "in a step" if " step " in done.told else "elsewhere"] += 1
        right = at_once or (done.status == EX_TEMPFAIL and done.told.rstrip().endswith(way_on))
        return self.expect(right, f"{number.name} at {moment:.2f} s: ended with {done.status}: {done.told[-1500:]}")

    def fail_once(self) -> None:
        """Run on a disk that fails."""
        number, call = self.chance.choice(ERRORS), self.chance.randint(1, self.calls)
        done = self.run(HOSTILE_CALL=str(call), HOSTILE_ERROR=str(number))
        name = errno.errorcode[number]
        if done.status == 0:
            return
        self.faults[name] += 1
        last = done.told.rstrip().splitlines()[-1:] or [""]
        clear = done.status in (1, 2) and "Traceback" not in done.told and str(self.work) in last[0]
        self.expect(clear, f"{name} from call {call} on: ended with {done.status}: {done.told[-1500:]}")
        self.check(f"{name} from call {call} on", lambda: check_whole(self.work))

    def go_on(self) -> None:
        """Let it end, and compare."""
        step = self.chance.choice((-DAY, 0, DAY))
        done = self.run(HOSTILE_CLOCK=str(step))
        self.rounds += 1
        if not self.expect(done.status == 0, f"did not go on: {done.told[-1500:]}"):
            return
        self.check("outcome", self.compare)
        if self.scenario.preempted:
            steps = sorted(self.steps.read_text().split())
            self.expect(steps == self.all_steps, f"{len(steps)} steps for {len(self.all_steps)}")

    def compare(self) -> None:
        """Hold the files against those of the undisturbed run."""
        found = outcome(self.work)
        # Who is killed leaves a lock file, which locks nothing; signals leave the last checkpoint but one at any step.
        left_out = ".previous.pt" if self.scenario.preempted else ".lock"
        names = {name for name in (*found, *self.undisturbed) if not name.endswith(left_out)}
        differ = [name for name in names if found.get(name) != self.undisturbed.get(name)]
        assert not differ, f"not as in the undisturbed run: {sorted(differ)}"

    def check(self, what: str, act: Any) -> None:
        """Note what is wrong."""
        try:
            act()
        except AssertionError as error:
            self.expect(False, f"{what}: {error}")

    def expect(self, right: bool, otherwise: str) -> bool:
        """Note what is wrong."""
        if not right:
            self.wrong.append(f"{self.scenario.name}: {otherwise}")
            print(f"WRONG {self.wrong[-1]}", file=sys.stderr, flush=True)
        return right


def note_step(recorder: SettingsFile, step: int, steps: int, loss: object) -> None:
    """Note a step of a training run, as one of its recorders."""
    with open(os.environ.get("HOSTILE_STEPS", os.devnull), "a") as file:
        file.write(f"{step}\n")


def interrupt(trial: Trial, once: Callable[[], bool], done: Counter[str], wanted: int, most: int) -> None:
    """Interrupt a scenario so many times, in rounds of one to ``most``, after each of which it ends."""
    while done.total() < wanted:
        trial.anew()
        for _ in range(min(trial.chance.randint(1, most), wanted - done.total())):
            if not once():
                break
        trial.go_on()


def let_disk_fail(trial: Trial, faults: int) -> None:
    """Let the disk of a scenario fail so many times."""
    tries = 0
    while trial.faults.total() < faults and tries < 3 * faults:
        tries += 1
        trial.anew()
        trial.fail_once()
        trial.go_on()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--faults", type=int, default=60, help="of the disk, in all")
    parser.add_argument("--signals", type=int, default=50, help="to end a training run, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    given = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
            again = [sys.executable, "-m", "app.tests.hostile.kill", *sys.argv[1:]]
            return subprocess.run(again, env=os.environ | surroundings(Path(temporary)), check=False).returncode
    for command in COMMANDS:
        import_module(f"robustdml.commands.{command}")
    SettingsFile.step = note_step
    trials, killed = [], [name for name in given.only if not SCENARIOS[name].preempted] or given.only
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        for place, name in enumerate(given.only):
            kills, faults = ((number + place) // len(killed) for number in (given.kills, given.faults))
            began = time.monotonic()
            trial = Trial(SCENARIOS[name], Path(temporary) / f"{place}", random.Random(f"{given.seed} {name}"))
            if trial.scenario.preempted:
                interrupt(trial, trial.end_once, trial.signals, given.signals, most=5)
            else:
                interrupt(trial, trial.kill_once, trial.kills, kills, most=3)
                let_disk_fail(trial, faults)
            trials.append(trial)
            print(
                f"{name}: {trial.kills.total()} kills {dict(trial.kills)}, {trial.faults.total()} faults "
                f"{dict(trial.faults)}, {trial.signals.total()} signals {dict(trial.signals)}, "
                f"{trial.rounds} times gone on, {len(trial.wrong)} wrong; {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return 1 if any(trial.wrong for trial in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
