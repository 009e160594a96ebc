"""Self-check: a backend serves a GPU once its results agree there with float64; docs/gpu.md."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import exact_float32_products

CHECKED = {"cuda"}  # types of devices on which backends are checked before they serve
_TF32 = 2.0**-6  # error of products of TF32
DRIVER = Path("/proc/driver/nvidia/version")


class Case(NamedTuple):
    """An op or a loss on small inputs."""

    op: Callable[[Any, str], list[Tensor]]  # results for inputs and a backend
    inputs: Callable[[torch.device, bool], Any]  # on a device; True: in float64
    tolerance: float  # largest error of a result, relative to its largest value, where products are exact


class Outcome(NamedTuple):
    """What a case gave on a backend."""

    error: float | str  # relative to float64, or the exception
    failure: str | None  # why the backend must not serve


class Primitive(NamedTuple):
    """A table of backends, and the cases that decide which of them serve."""

    name: str
    backends: Mapping[str, Any]
    cases: Mapping[str, Case]


PRIMITIVES: dict[int, Primitive] = {}  # by identity of the table of backends
_VERDICTS: dict[tuple[int, str, torch.device], str | None] = {}


def verdict(backends: Mapping[str, Any], backend: str, device: torch.device) -> str | None:
    """Why ``backend`` must not serve ``device``, of a type in CHECKED, or None. The first call runs the cases."""
    if backend == "eager":
        return None
    key = (id(backends), backend, device)
    if key not in _VERDICTS and (primitive := PRIMITIVES.get(id(backends))):
        stored = _read().get(_environment(device), {}).get(primitive.name, {})
        if os.environ.get("ROBUSTDML_SELF_CHECK") == "0":
            _VERDICTS[key] = None
        elif backend in stored:
            _VERDICTS[key] = stored[backend]
        elif not _postponed(device):
            try:
                store(primitive, backend, device, run_cases(primitive, backend, device))
            except torch.OutOfMemoryError:  # says nothing about the backend: the next call checks it
                del _VERDICTS[key]
    return _VERDICTS.get(key)


def _postponed(device: torch.device) -> bool:
    """Whether a later call runs the cases, which wait for the device: not while operations are recorded or watched."""
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._are_functorch_transforms_active():
        return True
    if torch.compiler.is_compiling() or device.type != "cuda":
        return torch.compiler.is_compiling()
    return torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode() > 0


def run_cases(primitive: Primitive, backend: str, device: torch.device) -> dict[str, Outcome]:
    """Each case on the device by the backend, against plain PyTorch in float64 on the CPU."""
    outcomes: dict[str, Outcome] = {}
    _VERDICTS[id(primitive.backends), backend, device] = None  # the cases name the backend
    no_autocast = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), no_autocast, torch.device("cpu") as cpu:
        for name, case in primitive.cases.items():
            exact = case.op(case.inputs(cpu, True), "eager")
            most = case.tolerance if exact_float32_products(device) else max(case.tolerance, _TF32)
            try:
                error = _error(case.op(case.inputs(device, False), backend), exact)
                wrong = None if error <= most else f"its error is {error:.1e}, and may be {most:.1e}"
                outcomes[name] = Outcome(error, wrong)
            except torch.OutOfMemoryError:
                raise
            except Exception as raised:  # any other failure of the backend is its outcome
                outcomes[name] = Outcome(*[f"{type(raised).__name__}: {raised}".splitlines()[0]] * 2)
    return outcomes


def _error(results: list[Tensor], exact: list[Tensor]) -> float:
    relative = [
        (result.double().cpu() - true).abs().max() / true.abs().max().clamp(min=1e-300)
        for result, true in zip(results, exact, strict=True)
    ]
    return float(torch.stack(relative).max())  # NaN where one is


def store(primitive: Primitive, backend: str, device: torch.device, outcomes: Mapping[str, Outcome]) -> None:
    """Keep the verdict that follows from the outcomes, in this process and on disk."""
    reason, failures = None, [f"{name}: {one.failure}" for name, one in outcomes.items() if one.failure is not None]
    if failures:
        # Where plain PyTorch fails, too, a setting is at fault. After a kernel that broke the context everything fails.
        if _answers(device) and any(one.failure is not None for one in run_cases(primitive, "eager", device).values()):
            return
        where = f"its self-check failed on {_card(device)} in {failures[0]}"
        reason = f"{where} (ROBUSTDML_SELF_CHECK=0 leaves it out)"
    _VERDICTS[id(primitive.backends), backend, device] = reason
    verdicts = _read()
    verdicts.setdefault(_environment(device), {}).setdefault(primitive.name, {})[backend] = reason
    with suppress(OSError, RuntimeError):  # no folder to write to: the next process runs the cases again
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        # Of a name that nobody knows beforehand: a link of that name would be written through.
        handle, unfinished = tempfile.mkstemp(dir=folder(), prefix=".self_check.")
        with os.fdopen(handle, "w") as file:
            json.dump(verdicts, file, indent=1)
        os.replace(unfinished, folder() / "self_check.json")


def _answers(device: torch.device) -> bool:
    """Whether the context of a GPU still runs anything."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _read() -> dict[str, dict[str, dict[str, str | None]]]:
    """Verdicts by environment, primitive and backend; none in a file that is damaged or missing."""
    with suppress(OSError, ValueError, RuntimeError, AttributeError):
        stored = json.loads((folder() / "self_check.json").read_text())
        return {
            environment: {
                primitive: {backend: reason and str(reason) for backend, reason in reasons.items()}
                for primitive, reasons in primitives.items()
            }
            for environment, primitives in stored.items()
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
