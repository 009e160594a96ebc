"""What a run is made on. Found without importing torch, so that a broken one is no hindrance."""

import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "numpy", "pytorch-metric-learning", "liger-kernel", "cut-cross-entropy", "torchvision")
QUERY = ("name", "driver_version", "memory.total", "compute_cap")


def machine(commit: str | None = None) -> dict[str, str | None]:
    """GPU, driver, versions and commit; None where there is none.

    Parameters
    ----------
    commit : str, optional
        Of a copy that has no repository of its own.
    """
    found = _printed("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
    gpu = [part.strip() for part in found.splitlines()[0].split(",")] if found else [None] * len(QUERY)
    inside = _printed("git", "-C", str(ROOT), "rev-parse", "--show-toplevel") == str(ROOT)
    head = _printed("git", "-C", str(ROOT), "rev-parse", "HEAD") if inside else None
    changed = bool(_printed("git", "-C", str(ROOT), "status", "--porcelain")) if head else False
    return {
        **dict(zip(("gpu", "driver", "memory", "capability"), gpu, strict=True)),
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "commit": commit or (f"{head}{' with changes' if changed else ''}" if head else None),
    }


def version(package: str) -> str | None:
    """As installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _printed(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
