"""The run: each section as a child with a time limit, started again after a crash, without the row that crashed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from . import rows
from .machine import ROOT, machine
from .packages import unpack
from .plan import Section, allowed

TRIES = 8  # of a section that crashes
GRACE_S = 10.0  # beyond its time, for a section to finish what it is at


def run(
    out: Path, chosen: Sequence[Section], minutes: float, dry_run: bool, wheels: Path | None, commit: str | None
) -> None:
    """Run the sections and write their rows to ``out``; NoCard where there is no GPU and one is asked for."""
    out.mkdir(parents=True, exist_ok=True)
    (out / rows.MACHINE).write_text(json.dumps(machine(commit, dry_run)))
    run_id, end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as site, (out / rows.LOG).open("a") as log:
        environment = _environment(Path(site), dry_run)
        if wheels:
            unpack(wheels, Path(site), log)
        for section in chosen:
            began = time.monotonic()
            print(f"({section.letter}) {section.title}: ", end="", flush=True)
            # A dry run may share its processor with anything: it has no limits but the whole.
            seconds = end - began if dry_run else allowed(section, chosen, end - began)
            _section(section, out, run_id, seconds, dry_run, environment, log)
            found = [row for row in rows.read(out) if row["section"] == section.letter and row["run"] == run_id]
            counts = Counter(row["status"] for row in found)
            told = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing"
            print(f"{told}; {time.monotonic() - began:.0f} s", flush=True)


def _environment(site: Path, dry_run: bool) -> dict[str, str]:
    """``site`` is where wheels are unpacked; in a dry run Triton's kernels run in its interpreter."""
    path = os.pathsep.join(filter(None, [str(site), str(ROOT), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ROBUSTDML_"))}
    given = {"PYTHONPATH": path, "BENCH_GPU_SITE": str(site), "PYTHONUNBUFFERED": "1"}
    given["TEARDOWN_CUPTI"] = "1"  # or what was profiled once is slower ever after
    return kept | given | ({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if dry_run else {})


def _section(
    section: Section, out: Path, run_id: str, seconds: float, dry_run: bool, environment: dict[str, str], log: IO[str]
) -> None:
    end, started = time.monotonic() + seconds, out / rows.STARTED
    for _ in range(TRIES):
        left = end - time.monotonic()
        if left <= 0:
            return _note(out, section, run_id, dry_run, rows.NOT_RUN, "time")
        command = [sys.executable, "-m", f"{__package__}.child", section.letter, str(out), run_id, f"{left:.1f}"]
        command += ["--dry-run"] if dry_run else []
        started.unlink(missing_ok=True)
        place = log.tell()
        reason = _child(command, environment, left + GRACE_S, log)
        if reason is None:
            return None
        # The row that was begun is told, and the next child goes on behind it.
        row = json.loads(started.read_text()) if started.exists() else None
        tail = Path(log.name).read_bytes()[place:][-1500:].decode(errors="replace")
        _note(out, section, run_id, dry_run, rows.ERROR, reason, row, log=tail)
        if row is None:
            return None
    return None


def _child(command: list[str], environment: dict[str, str], seconds: float, log: IO[str]) -> str | None:
    """Why the child did not end as it should, or None; whatever it has started ends with it."""
    log.write(f"\n$ {' '.join(command)}\n")
    log.flush()
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"time limit of {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0, os.SEEK_END)
    if code < 0:
        return f"the process ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}" if code else None


def _note(
    out: Path,
    section: Section,
    run_id: str,
    dry_run: bool,
    status: str,
    reason: str,
    row: dict[str, Any] | None = None,
    **facts: Any,
) -> None:
    told = {"section": section.letter, "name": "the section", "shape": None, **(row or {})}
    whole = {**told, "status": status, "reason": reason, **facts, "run": run_id, "dry_run": dry_run}
    rows.append(out, {**whole, "machine": json.loads((out / rows.MACHINE).read_text())})
