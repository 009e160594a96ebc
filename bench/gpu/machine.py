"""What a run is made on. Found without importing torch here, so that a broken one is no hindrance."""

import json
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "numpy", "pytorch-metric-learning", "liger-kernel", "cut-cross-entropy", "torchvision")
CARD = """
import json, torch
card = torch.cuda.get_device_properties(0)
print(json.dumps({"gpu": card.name, "capability": f"{card.major}.{card.minor}", "memory_mb": card.total_memory >> 20,
                  "multiprocessors": card.multi_processor_count, "cuda": torch.version.cuda}))
"""


class NoCard(RuntimeError):  # noqa: N818
    """Torch sees no GPU; the message is what it says."""


def machine(commit: str | None, dry_run: bool) -> dict[str, str | int | None]:
    """GPU, driver, versions and commit; None where there is none.

    Parameters
    ----------
    commit : str, optional
        Of a copy that has no repository of its own.
    dry_run : bool
        Whether no GPU is asked for.

    Raises
    ------
    NoCard
        If one is, and there is none.
    """
    inside = _printed("git", "-C", str(ROOT), "rev-parse", "--show-toplevel") == str(ROOT)
    head = _printed("git", "-C", str(ROOT), "rev-parse", "HEAD") if inside else None
    changed = bool(_printed("git", "-C", str(ROOT), "status", "--porcelain")) if head else False
    driver = _printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        **({"gpu": None, "capability": None} if dry_run else card()),
        "driver": driver and driver.splitlines()[0],
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "commit": commit or (f"{head}{' with changes' if changed else ''}" if head else None),
    }


def card() -> dict[str, str | int | None]:
    """The first GPU that torch sees, asked in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CARD], capture_output=True, text=True)
    if done.returncode:
        raise NoCard(done.stderr.strip().rpartition("\n")[2])
    found: dict[str, str | int | None] = json.loads(done.stdout)
    return found


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
