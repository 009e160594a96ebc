"""Kills ``make wheels`` at random moments and holds what it leaves against the archives of an undisturbed run.

``python -m tests.release.kill_wheels --only sdist --only cpu --kills 20 --seed 0``: the process group is killed at a
random time of the undisturbed run's, every other one in the last twentieth, where archives are written. Whatever has
its own name in the folder must have the bytes of the undisturbed run, after each kill and after the run that follows,
which must leave nothing else. The same with a quota of the disk instead of a kill. Wheels are made of a commit: changes
of files that are in none end it.
"""

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from release.make_wheels import KINDS
from tests.subprocesses import ROOT


def files(folder: Path) -> dict[str, bytes]:
    """By name, of a folder that may not be there yet."""
    return {file.name: file.read_bytes() for file in folder.glob("*")} if folder.is_dir() else {}


class Wheels:
    """``make wheels`` into a folder of its own."""

    def __init__(self, kinds: Sequence[str], folder: Path) -> None:
        only = [word for kind in kinds for word in ("--only", kind)]
        self.out, self.temporary = folder / "dist", folder / "temporary"
        self.temporary.mkdir(parents=True)
        self.command = [sys.executable, "-m", "release.make_wheels", *only, "--out", str(self.out)]

    def run(self, seconds: float | None = None, largest_file: int = resource.RLIM_INFINITY) -> int:
        """To its end, or until it is killed after so many seconds; the exit status."""

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        process = subprocess.Popen(
            self.command, cwd=ROOT, env=environment, start_new_session=True, preexec_fn=limit, **quiet
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=KINDS, help="as of release.make_wheels")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    kinds, chance = given.only or ["sdist", "cpu"], random.Random(given.seed)
    with tempfile.TemporaryDirectory() as temporary:
        undisturbed = Wheels(kinds, Path(temporary) / "undisturbed")
        began = time.monotonic()
        if undisturbed.run() != 0:
            sys.exit(f"it failed without a kill: {' '.join(undisturbed.command)}")
        seconds, whole = time.monotonic() - began, files(undisturbed.out)
        largest = max(map(len, whole.values()))
        wheels, wrong, killed = Wheels(kinds, Path(temporary) / "killed"), [], 0

        def check(what: str) -> None:
            for name, content in files(wheels.out).items():
                if not name.startswith(".") and content != whole.get(name):
                    wrong.append(f"{what}: {name} is not that of the undisturbed run")

        for number in range(given.kills):
            moment = seconds * (1 - chance.uniform(0, 0.05) if number % 2 else chance.random())
            killed += wheels.run(moment) == -signal.SIGKILL
            check(f"killed at {moment:.1f} s of {seconds:.1f}")
        for share in (0.1, 0.5, 0.99):
            if wheels.run(largest_file=int(share * largest)) == 0:
                wrong.append(f"a quota of {share} of the largest archive was not told")
            check(f"with a quota of {share} of the largest archive")
        if wheels.run() != 0 or files(wheels.out) != whole:
            wrong.append(f"the run after them left {sorted(files(wheels.out))}, not {sorted(whole)} as undisturbed")
    print(f"{', '.join(kinds)}: {killed} kills, 3 quotas, {len(wrong)} wrong", *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
