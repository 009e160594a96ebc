"""Programs that sections start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .machine import ROOT


def tool(name: str) -> str | None:
    """A program of this environment, of the machine, or of CUDA's usual place."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    places = (str(Path(sys.executable).parent), os.environ.get("PATH", ""), f"{home}/bin")
    return shutil.which(name, path=os.pathsep.join(places))


def done(
    command: Sequence[str | Path], seconds: float, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> tuple[int | None, str]:
    """Exit code, None where the time was up, and what was printed; all of it is in the log, too."""
    try:
        result = subprocess.run(
            list(map(str, command)),
            env={**os.environ, **(environment or {})},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(1.0, seconds),
        )
        code, text = result.returncode, result.stdout
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
        code, text = None, printed.decode(errors="replace") if isinstance(printed, bytes) else printed
    print(f"$ {' '.join(map(str, command))}\n{text}", flush=True)
    return code, text
