"""Kills commands at random moments, lets them go on, and holds what they leave against an undisturbed run, bit for bit.

``python -m app.tests.hostile.kill --kills 200 --faults 60 --seed 0`` takes all commands of
`app.tests.hostile.scenarios` in turn. Half of the kills come at a random time, half at a random write, fsync, rename or
unlink of the command, a write after half of its bytes. A fault is a disk that from a random write on is full, over
quota, broken or read-only, or that refuses renames: the command has to end with one line that names a file. After each
kill every file that has its own name must be whole; and after all of them the command goes on, on a clock that is a day
off, and must end with the same files as the undisturbed run: none missing, none left over, every number the same but
times and memory.

Each process is forked from this one, which has imported everything: kills shall not come while PyTorch is imported.
"""

import argparse
import ctypes
import errno
import multiprocessing.util
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import process as futures_process
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from app.tests.hostile.outcomes import check_whole, outcome
from app.tests.hostile.scenarios import SCENARIOS, Scenario
from robustdml.cli import COMMANDS
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


def run_forked(command: Sequence[str], said: Path, moment: float | None = None, **changes: str) -> Ended:
    """Run a module in a process group of its own, and kill that after ``moment`` seconds."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _become(command, said, changes)
    killer = PATIENCE if moment is None else moment
    until = time.monotonic() + killer
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    return Ended(os.waitstatus_to_exitcode(ended[1]), said.read_text(errors="replace"))


def _become(command: Sequence[str], said: Path, changes: dict[str, str]) -> None:
    status = 1
    try:
        os.setsid()
        for stream, path in ((1, Path(os.devnull)), (2, said)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.environ.update(changes)
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # What Python does at its end with its own processes; all else would take away the parent's folder, too.
        futures_process._python_exit()
        multiprocessing.util._exit_function()
        # Not `os._exit`: the library that was preloaded has something to say.
        ctypes.CDLL(None).exit(status)


@dataclass
class Trial:
    """A scenario in a folder of its own, with the outcome of its undisturbed run; what was done, and went wrong."""

    scenario: Scenario
    folder: Path
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.given = self.folder / "given"
        self.given.mkdir(parents=True)
        self.scenario.prepare(self.given)
        self.anew()
        counts = self.folder / "counts"
        began = time.monotonic()
        done = self.run(HOSTILE_COUNT=str(counts))
        assert done.status == 0, done.told
        self.seconds = time.monotonic() - began
        self.calls = max(map(int, counts.read_text().split()))
        self.undisturbed = outcome(self.work)

    def anew(self) -> None:
        """Forget all that was made."""
        self.work = self.folder / "work"
        shutil.rmtree(self.work, ignore_errors=True)
        self.out = self.work / "out"
        self.out.mkdir(parents=True)

    def run(self, moment: float | None = None, **changes: str) -> Ended:
        """Begin, or go on; to the end, or until it is killed."""
        command = self.scenario.command(self.given, self.out)
        if not command:
            return Ended(0, "")
        changes = {"ROBUSTDML_CACHE": str(self.work / "cache"), "HOSTILE_FOLDER": str(self.work)} | changes
        return run_forked(command, self.folder / "said", moment, **changes)

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

    def compare(self) -> None:
        """Hold the files against those of the undisturbed run."""
        found = outcome(self.work)
        # Who is killed leaves a lock file, of some bytes, which locks nothing.
        found = {name: digest for name, digest in found.items() if not name.endswith(".lock")}
        differ = [name for name in {*found, *self.undisturbed} if found.get(name) != self.undisturbed.get(name)]
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


def hold(name: str, kills: int, faults: int, seed: int, folder: Path) -> Trial:
    """Kill a scenario so many times, in rounds of one to three kills, and let its disk fail so many times."""
    trial = Trial(SCENARIOS[name], folder, random.Random(f"{seed} {name}"))
    while trial.kills.total() < kills:
        trial.anew()
        for _ in range(min(trial.chance.randint(1, 3), kills - trial.kills.total())):
            if not trial.kill_once():
                break
        trial.go_on()
    tries = 0
    while trial.faults.total() < faults and tries < 3 * faults:
        tries += 1
        trial.anew()
        trial.fail_once()
        trial.go_on()
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--faults", type=int, default=60, help="of the disk, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    given = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
            again = [sys.executable, "-m", "app.tests.hostile.kill", *sys.argv[1:]]
            return subprocess.run(again, env=os.environ | surroundings(Path(temporary)), check=False).returncode
    for command in COMMANDS:
        import_module(f"robustdml.commands.{command}")
    trials = []
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        for place, name in enumerate(given.only):
            share = [(number + place) // len(given.only) for number in (given.kills, given.faults)]
            began = time.monotonic()
            trial = hold(name, *share, given.seed, Path(temporary) / f"{place}")
            trials.append(trial)
            print(
                f"{name}: {trial.kills.total()} kills {dict(trial.kills)}, {trial.faults.total()} faults "
                f"{dict(trial.faults)}, {trial.rounds} times gone on, {len(trial.wrong)} wrong; "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    return 1 if any(trial.wrong for trial in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
