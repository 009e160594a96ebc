"""Programs that sections start."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .machine import ROOT


def tool(name: str) -> str | None:
    """A program of this environment, of wheels that were carried along, of the machine, or of CUDA's usual place."""
    carried, home = os.environ.get("BENCH_GPU_SITE", ""), os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    places = (str(Path(sys.executable).parent), f"{carried}/bin", os.environ.get("PATH", ""), f"{home}/bin")
    return shutil.which(name, path=os.pathsep.join(places))


def done(
    command: Sequence[str | Path], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Exit code, None where the time was up, and what was printed; all of it is in the log, too."""
    # A file, for a pipe is open, and waited for, as long as anything lives that the command has started.
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        try:
            code: int | None = subprocess.run(
                list(map(str, command)),
                env={**os.environ, **(environment or {})},
                cwd=ROOT,
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, seconds),
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        printed.seek(0)
        text = printed.read()
    print(f"$ {' '.join(map(str, command))}\n{text}", flush=True)
    return code, text
