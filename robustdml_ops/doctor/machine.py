"""Versions, devices, the native module, threads, OpenMP libraries, other work on the machine, and folders."""

import os
import platform
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import robustdml_ops
from robustdml_ops.backends import native_module, self_check
from robustdml_ops.backends.native_module import bfloat16_pays

# Optional packages, and NumPy.
_PACKAGES = ("numpy", "triton", "pytorch-metric-learning")
_POOLS = re.compile(r"/(lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*)$")
_MAPS = Path("/proc/self/maps")
_STAT = Path("/proc/stat")
# The limit of a control group (a container, a Slurm job) on processor time.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# A value of OMP_NUM_THREADS: a number for each level of nested regions.
_NUMBERS = re.compile(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str  # the subject: "threads", "anchor on cpu"
    told: str  # the result in a line
    way_out: str | None = None  # the remedy; None: nothing is to be done
    facts: dict[str, Any] = field(default_factory=dict)  # the result for programs: numbers, names, lists of them
    slows: bool = False  # whether the way out gains speed alone

    @classmethod
    def of(cls, name: str, check: Callable[[], "Finding"]) -> "Finding":
        """The result of ``check``, or that it failed, which must not hide the others."""
        try:
            return check()
        except Exception as error:
            told = f"could not be looked at: {type(error).__name__}: {error}".splitlines()[0]
            return cls(name, told, "report it with this output; the rest was looked at all the same")

    @property
    def severity(self) -> str:
        """``ok``, ``note`` where this machine is slower than it could be, or ``fault``."""
        return "ok" if self.way_out is None else "note" if self.slows else "fault"

    def record(self) -> dict[str, object]:
        """Everything, for programs."""
        fields = {"name": self.name, "severity": self.severity, "told": self.told, "way_out": self.way_out}
        return {**fields, **self.facts}


def versions() -> Finding:
    """Versions of Python, this package, PyTorch and the packages that they may use."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "robustdml_ops": robustdml_ops.__version__,
        "torch": str(torch.__version__),
    }
    found.update((name, self_check.installed(name)) for name in _PACKAGES)
    told = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    return Finding("versions", f"{told}; {platform.platform()}", facts={**found, "platform": platform.platform()})


def devices(driver_file: Path = self_check.DRIVER) -> Finding:
    """The processor, the CUDA devices and their driver."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        seen = torch.cuda.device_count()
        found = [torch.cuda.get_device_properties(i) for i in range(seen)] if torch.cuda.is_available() else []
    cards = [
        f"{one.name} (compute capability {one.major}.{one.minor}, {one.total_memory / 2**30:.0f} GiB)" for one in found
    ]
    built, driver = torch.version.cuda, self_check.driver(driver_file)
    told = f"{platform.machine()} CPU; " + (", ".join(cards) if cards else "no CUDA device")
    told += "" if driver is None else f"; NVIDIA driver {driver}"
    told += "" if built is None else f", PyTorch built for CUDA {built}"
    facts = {"cuda_devices": cards, "torch_cuda": built, "driver": driver}
    complaint = "; ".join(str(one.message).splitlines()[0] for one in said)
    way_out = None
    if built is not None and not cards and (seen > 0 or complaint):
        way_out = (
            f"PyTorch can't use the card ({complaint or 'it does not say why'}): see what `nvidia-smi` says; a driver "
            f"that is too old for CUDA {built} has to be updated"
        )
    elif built is None and driver is not None:
        way_out = (
            "there is an NVIDIA driver, and this PyTorch is for the CPU alone: to use the card, install one with CUDA"
        )
    return Finding("devices", told, way_out, facts)


def native() -> Finding:
    """Whether the native module loads, and for which GPUs and driver it was built."""
    reason = native_module.unavailable(torch.device("cpu"), torch.float32)
    if reason is not None:
        there = sorted(file.name for file in Path(robustdml_ops.__file__).parent.glob("_native*"))
        if there:
            reason = f"{reason}; there is {', '.join(there)}, and this is Python {platform.python_version()}"
        return Finding(
            "native module",
            reason,
            "install a wheel for this Python that has it, or reinstall where a C++17 compiler is found: the CPU takes "
            "several times as long without it",
            {"built": False, "there": there},
        )
    library = native_module.library
    architectures = getattr(library, "cuda_architectures", None)
    half = bfloat16_pays()
    facts = {"built": True, "cuda_architectures": architectures, "bfloat16": half, "file": library.__file__}
    if architectures is None:
        facts["cuda_left_out"] = library.cuda_left_out
        told = f"for the CPU alone: {library.cuda_left_out}"
    else:
        told = f"for the CPU and the cards {architectures}"
        facts |= {"cuda_runtime": library.cuda_runtime_version, "cuda_driver": library.cuda_driver_version()}
        driver = facts["cuda_driver"]
        told += f", built by CUDA {native_module.dotted(facts['cuda_runtime'])}; "
        told += f"the driver supports CUDA {native_module.dotted(driver)}" if driver else "there is no driver"
    told += f"; on the CPU bfloat16 is multiplied {'as it is' if half else 'in float32'}"
    way_out = None
    if torch.cuda.is_available() and (reason := native_module.unavailable(torch.device("cuda"), torch.float32)):
        told += f"; {reason}"
        if self_check.installed("triton") is None:
            way_out = "install triton, or the native module for this card"
    return Finding("native module", told, way_out, facts)


def threads(quota: Path = _QUOTA) -> Finding:
    """Compare PyTorch's threads and OMP_NUM_THREADS with the processors that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit, asked = _limit(quota), os.environ.get("OMP_NUM_THREADS")
    usable = allowed if limit is None else max(1, min(allowed, round(limit)))
    number = torch.get_num_threads()
    facts = {"threads": number, "processors": allowed, "quota": limit, "OMP_NUM_THREADS": asked}
    told = f"{number} threads on {allowed} processors" + ("" if limit is None else f", of which it may use {limit:g}")
    way_out = None
    if asked is not None and not _NUMBERS.fullmatch(asked):
        way_out = (
            f"OMP_NUM_THREADS={asked!r} is no number from 1 on, and is passed over: set it to {usable}, or unset it"
        )
    elif number > usable:
        way_out = f"set OMP_NUM_THREADS={usable}: more threads than processors wait for each other"
    return Finding("threads", told, way_out, facts, slows=True)


def _limit(quota: Path) -> float | None:
    """Number of processors whose time the control group grants; None: no limit."""
    try:
        most, period = quota.read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def pools(maps: Path = _MAPS) -> Finding:
    """Find the OpenMP libraries in this process: with two, two thread pools share the processors."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:
        return Finding("OpenMP", "can't be told on this system")
    # Linux marks a library that was replaced since it was loaded; names may have blanks.
    mapped = [line.split(maxsplit=5)[5].removesuffix(" (deleted)") for line in lines if line.count("/")]
    files = sorted({path for path in mapped if _POOLS.search(path)})
    way_out = None
    if len(files) > 1:
        way_out = (
            "two pools of threads share the processors: let PyTorch alone bring one, which the native module shares; "
            "often another package was installed by another channel than PyTorch"
        )
    names = ", ".join(Path(file).name for file in files)
    return Finding("OpenMP", names or "none", way_out, {"libraries": files}, slows=True)


def busy(seconds: float = 0.25, stat: Path = _STAT) -> Finding:
    """Measure how busy the machine is while this process sleeps."""
    try:
        before = _ticks(stat)
        time.sleep(seconds)
        idle, total = (after - at_first for after, at_first in zip(_ticks(stat), before, strict=True))
    except (OSError, ValueError, IndexError):
        return Finding("other work", "can't be told on this system")
    load = 1 - idle / max(1, total)
    way_out = None
    if load > 0.25:
        way_out = "time nothing now; for training set OMP_WAIT_POLICY=passive before Python starts"
    return Finding("other work", f"{load:.0%} of the machine is busy", way_out, {"busy": round(load, 3)}, slows=True)


def _ticks(stat: Path) -> tuple[int, int]:
    """Idle and all ticks of all processors."""
    numbers = [int(number) for number in stat.read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


def folders() -> Finding:
    """Write into the folder for temporary files, and on a GPU into those of the self-check and of Triton."""
    asked: dict[str, Callable[[], Path]] = {"temporary files (TMPDIR)": lambda: Path(tempfile.gettempdir())}
    if torch.cuda.is_available():
        asked["verdicts of the self-check (ROBUSTDML_CACHE)"] = self_check.folder
        asked["kernels of Triton (TRITON_CACHE_DIR)"] = lambda: Path(
            os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
        )
    found = {name: _tried(folder) for name, folder in asked.items()}
    told = "; ".join(f"{name}: {folder or 'none'}" for name, (folder, _) in found.items())
    facts = {name: {"folder": folder, "broken": reason} for name, (folder, reason) in found.items()}
    wrong = "; ".join(f"{name}: {reason}" for name, (_, reason) in found.items() if reason is not None)
    way_out = f"name another folder in the variable: {wrong}" if wrong else None
    return Finding("folders", told, way_out, facts)


def _tried(find: Callable[[], Path]) -> tuple[str | None, str | None]:
    """The folder, and the reason why it can't be written to; None where there is none of either."""
    try:
        folder = find()
    except (OSError, RuntimeError, ValueError) as error:
        return None, str(error)
    try:
        # Permissions alone don't tell (a full disk, a read-only mount), so write; if need be, into the nearest parent.
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return str(folder), f"{folder} can't be written to ({(error.strerror or str(error)).lower()})"
    return str(folder), None
