"""``python -m bench.gpu OUT``: measure on a GPU; docs/gpu.md says how."""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from . import ROOT
from .results import BACKENDS, BEGUN, DTYPES, FAILED, TIME, append, read, stored, table, winners

# In order of worth, with their shares of the time. Each has processes of its own.
SECTIONS = {"build": 8, "correctness": 4, "fused": 3, "steps": 5, "settings": 4, "ceilings": 1, "scaling": 2}
SECTIONS |= {"tests": 4, "sanitizer": 4, "profile": 1}
PARTS = {"correctness": [f"{backend} {dtype}" for backend in BACKENDS for dtype in DTYPES]}  # side by side
OF_NATIVE = {"correctness", "tests", "settings", "sanitizer"}  # the native module is built before them
TRIES, GRACE_S = 8, 10.0  # of a section that crashes; beyond its time, for the row it is at
CARD = "import json, torch; card = torch.cuda.get_device_properties(0); print(json.dumps({'gpu': card.name, "
CARD += "'capability': f'{card.major}.{card.minor}', 'cuda': torch.version.cuda}))"


def printed(*command: str) -> str:
    """What a command prints, or nothing where there is none."""
    with contextlib.suppress(OSError):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return ""


def machine(commit: str | None, dry_run: bool) -> dict[str, Any]:
    """Card, driver, versions and commit; torch is asked in a process of its own."""
    card = "{}" if dry_run else printed(sys.executable, "-c", CARD)
    if not card:
        sys.exit("torch sees no GPU; --dry-run runs every section on the CPU")
    driver = printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
    facts = {"dry_run": dry_run, "driver": driver, "python": platform.python_version()} | json.loads(card)
    facts |= {each.name: each.version for each in distributions() if each.name in ("torch", "triton")}
    return facts | {"commit": commit or printed("git", "describe", "--always", "--dirty", "--abbrev=7")}


def section(
    name: str, out: Path, seconds: float, facts: dict[str, Any], environment: dict[str, str], log: Any, part: str = ""
) -> None:
    """Run one, again after a crash: the row that crashed is marked, and the next process goes on behind it."""
    end = time.monotonic() + seconds
    for _ in range(TRIES):
        left = max(0.0, end - time.monotonic())
        command = [sys.executable, "-m", "bench.gpu.sections", name, str(out), f"{left:.1f}", json.dumps(facts), part]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(left + GRACE_S)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
        process.wait()
        if code == 0:
            return
        reason = "time is up" if code is None else f"the process ended with code {code}: see log.txt"
        for row in read(out):
            if row["section"] == name and row["status"] == BEGUN and part in ("", f"{row['who']} {row['dtype']}"):
                append(out, row | {"status": TIME if code is None else FAILED, "reason": reason})
        if code is None:
            return
    append(
        out, {"section": name, "what": "all of it", "who": part, "machine": facts, "status": FAILED, "reason": reason}
    )


def main() -> None:
    """Run sections one after the other, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("out", type=Path, nargs="+", help="folder of results.jsonl, to which rows are added")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of them (default: %(default)s)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that are installed for this run")
    parser.add_argument("--commit", help="of this copy, where it is no repository")
    parser.add_argument("--dry-run", action="store_true", help="at small shapes on the CPU")
    parser.add_argument("--store", type=Path, help="write all rows in OUT, shortened, to this file")
    parser.add_argument(
        "--table", action="store_true", help="of all rows in OUT, files or folders; and what settings win"
    )
    given = parser.parse_args()
    if given.store:
        given.store.write_text(stored(read(*given.out)))
        return None
    if given.table:
        return print(f"{table(rows := read(*given.out))}\n\nsettings that win: {winners(rows)}")
    end = time.monotonic() + 60 * given.minutes
    names = [name for name in SECTIONS if name in given.only or (name == "build" and OF_NATIVE & {*given.only})]
    facts, out = machine(given.commit, given.dry_run), given.out[0].resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as site, (out / "log.txt").open("a") as log:
        path = [f"{site}/bin", str(Path(sys.executable).parent), os.environ["PATH"], "/usr/local/cuda/bin"]
        modules = [site, str(ROOT), os.environ.get("PYTHONPATH", "")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ROBUSTDML_"))}
        kept |= {"PATH": os.pathsep.join(path), "PYTHONPATH": os.pathsep.join(modules), "BENCH_GPU_SITE": site}
        kept |= {"PYTHONUNBUFFERED": "1", "ROBUSTDML_SELF_CHECK": "0"}  # section correctness checks
        kept |= {"TRITON_INTERPRET": "1"} if given.dry_run else {}
        if given.wheels:  # by one call: a second one into the same folder leaves out scripts
            pip = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", site]
            subprocess.run([sys.executable, "-m", *pip, *given.wheels.glob("*.whl")], stdout=log, stderr=log)
        for place, name in enumerate(names):
            share = SECTIONS[name] / sum(SECTIONS[later] for later in names[place:])
            given_to_all = (out, share * (end - time.monotonic()), facts, kept, log)
            with ThreadPoolExecutor() as pool:  # Triton compiles on one core
                list(pool.map(lambda part: section(name, *given_to_all, part), PARTS.get(name, [""])))  # noqa: B023
            print(f"{name}; {end - time.monotonic():.0f} s left", flush=True)
    print(table(read(out)))


if __name__ == "__main__":
    main()
