"""Self-check: a backend is trusted on a card once its ops agree with float64 there; docs/gpu.md."""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHECKED = {"cuda"}  # types of devices
DRIVER = Path("/proc/driver/nvidia/version")


class Case(NamedTuple):
    """An op on small inputs."""

    results: Callable[[torch.device, str, bool], list[Tensor]]  # of a device and a backend; True: in float64
    tolerance: Callable[[torch.device], float]  # largest error of a result, relative to its largest value


class Room(NamedTuple):
    """A table of backends, and cases of the ops that it serves."""

    name: str
    table: Mapping[str, Any]
    cases: Mapping[str, Case]


ROOMS: dict[int, Room] = {}  # by identity of the table
_VERDICTS: dict[tuple[int, str, torch.device], str | None] = {}


def add_room(name: str, table: Mapping[str, Any], cases: Mapping[str, Case]) -> None:
    """Give the cases that decide whether backends of ``table`` are trusted."""
    ROOMS[id(table)] = Room(name, table, cases)


def distrusted(table: Mapping[str, Any], backend: str, device: torch.device) -> str | None:
    """Why ``backend`` is put aside on ``device``, of a type in CHECKED, or None. Later uses look into a dictionary."""
    if backend == "eager":
        return None
    key = (id(table), backend, device)
    if key not in _VERDICTS:
        room = ROOMS.get(id(table))
        if room is None:
            return None
        known = _read().get(_environment(device), {}).get(room.name, {})
        if os.environ.get("ROBUSTDML_SELF_CHECK") == "0":
            _VERDICTS[key] = None
        elif backend in known:
            _VERDICTS[key] = known[backend]
        elif not _postponed(device):
            try:
                judge(room, backend, device, errors(room, backend, device))
            except torch.OutOfMemoryError:  # says nothing about the backend: the next use checks it
                del _VERDICTS[key]
                return None
    return _VERDICTS.get(key)


def _postponed(device: torch.device) -> bool:
    """Whether a later use makes the check, which waits for the device: not while operations are recorded or watched."""
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._are_functorch_transforms_active():
        return True
    if device.type != "cuda" or torch.compiler.is_compiling():
        return torch.compiler.is_compiling()
    return torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode() > 0


def errors(room: Room, backend: str, device: torch.device) -> dict[str, float | str]:
    """Largest error of each case, relative to its result's largest value, or the message of its exception."""
    _VERDICTS[id(room.table), backend, device] = None  # the cases name the backend
    found: dict[str, float | str] = {}
    no_autocast = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), no_autocast, torch.device("cpu") as cpu:
        for name, case in room.cases.items():
            exact = case.results(cpu, "eager", True)
            try:
                found[name] = _error(case.results(device, backend, False), exact)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # any other failure of the backend is the result
                found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def _error(found: list[Tensor], exact: list[Tensor]) -> float:
    relative = [
        (mine.double().cpu() - true).abs().max() / true.abs().max().clamp(min=1e-300)
        for mine, true in zip(found, exact, strict=True)
    ]
    return float(torch.stack(relative).max())  # NaN where one is


def wrong(room: Room, device: torch.device, found: Mapping[str, float | str]) -> dict[str, str]:
    """An error message for each case that failed."""
    told = {}
    for name, error in found.items():
        most = room.cases[name].tolerance(device)
        if isinstance(error, str):
            told[name] = error
        elif not error <= most:
            told[name] = f"its error is {error:.1e}, and may be {most:.1e}"
    return told


def judge(room: Room, backend: str, device: torch.device, found: Mapping[str, float | str]) -> None:
    """Keep the verdict that follows from errors, in this process and on disk."""
    failed, verdict = wrong(room, device, found), None
    if failed:
        # Where plain PyTorch fails, too, a setting is at fault. After a kernel that broke the context everything fails.
        if _answers(device) and wrong(room, device, errors(room, "eager", device)):
            return
        op, what = next(iter(failed.items()))
        verdict = f"its self-check failed on {_card(device)} in {op}: {what} (ROBUSTDML_SELF_CHECK=0 leaves it out)"
    _VERDICTS[id(room.table), backend, device] = verdict
    verdicts = _read()
    verdicts.setdefault(_environment(device), {}).setdefault(room.name, {})[backend] = verdict
    with suppress(OSError, RuntimeError):  # no folder to write to: checked again by the next process
        folder().mkdir(parents=True, exist_ok=True)
        unfinished = folder() / f".self_check.{os.getpid()}"
        unfinished.write_text(json.dumps(verdicts, indent=1))
        unfinished.replace(folder() / "self_check.json")


def _answers(device: torch.device) -> bool:
    """Whether the context of a card still runs anything."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _read() -> dict[str, dict[str, dict[str, str | None]]]:
    """Verdicts by environment, room and backend; a file that is damaged or missing has none."""
    with suppress(OSError, ValueError, RuntimeError, AttributeError):
        found = json.loads((folder() / "self_check.json").read_text())
        return {
            place: {
                room: {str(name): said and str(said) for name, said in known.items()} for room, known in rooms.items()
            }
            for place, rooms in found.items()
        }
    return {}


def folder() -> Path:
    """``ROBUSTDML_CACHE``, else ``robustdml_ops`` in ``XDG_CACHE_HOME`` or ``~/.cache``; may raise RuntimeError."""
    if chosen := os.environ.get("ROBUSTDML_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "robustdml_ops"


def _environment(device: torch.device) -> str:
    """Card, driver and versions."""
    versions = f"torch {torch.__version__}, triton {installed('triton')}, robustdml_ops {installed('robustdml_ops')}"
    return f"{_card(device)}, driver {driver()}, {versions}"


def _card(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def installed(package: str) -> str | None:
    """Version of a distribution."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def driver(file: Path = DRIVER) -> str | None:
    """Version of NVIDIA's kernel driver."""
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", file.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return found[1] if found else "of an unknown version"
