"""(a) What is there, what wheels bring along, and the native module built for this card."""

import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...shapes import Shape
from .. import rows
from ..commands import done, tool
from ..machine import ROOT, version
from ..packages import requirements
from ..sheet import Absent, Sheet

TOOLS = ("nvcc", "c++", "cmake", "ninja", "compute-sanitizer")
SERVES = """
import torch
from robustdml_ops.backends import native_module
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("serves:", native_module.unavailable(device, torch.float32))
"""


def run(sheet: Sheet) -> None:
    for line in requirements():
        sheet.row(f"package {line}", partial(package, line))
    for name in TOOLS:
        sheet.row(f"tool {name}", partial(program, name))
    sheet.row("native module", lambda _: native_module(sheet))
    sheet.row("Triton", lambda _: triton(sheet))


def package(requirement: str, _: Shape) -> Mapping[str, Any]:
    """As it is installed, or came out of a wheel."""
    found = version(requirement.partition("==")[0])
    if found is None:
        raise Absent("not installed, and no wheel of it")
    return {"version": found}


def program(name: str, _: Shape) -> Mapping[str, Any]:
    path = tool(name)
    if path is None:
        raise Absent("not found")
    code, text = done([path, "--version"], 20)
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return {"version": found and found[0]} if code == 0 else {"status": rows.FAILED, "reason": text[-200:]}


def native_module(sheet: Sheet) -> Mapping[str, Any]:
    """Built in place for this card alone; in a dry run configured, and what would be compiled is listed."""
    missing = [name for name in ("cmake", "ninja", "c++") if tool(name) is None]
    missing += [] if version("pybind11") else ["pybind11"]
    missing += [] if sheet.dry_run or tool("nvcc") else ["nvcc"]
    if missing:
        raise Absent(f"no {', '.join(missing)}: Triton and eager alone")
    import pybind11

    folder = Path(os.environ["BENCH_GPU_SITE"]) / "native"
    target = folder if sheet.dry_run else ROOT / "robustdml_ops"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": target,
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11.get_cmake_dir(),
        "ROBUSTDML_CUDA": "OFF" if sheet.dry_run else "ON",
        **({} if sheet.dry_run else {"CMAKE_CUDA_COMPILER": tool("nvcc")}),
    }
    environment = {} if sheet.dry_run else {"TORCH_CUDA_ARCH_LIST": sheet.machine["capability"]}
    options = [f"-D{name}={value}" for name, value in settings.items()]
    commands = (
        [tool("cmake"), "-S", ROOT, "-B", folder, "-G", "Ninja", *options],
        [tool("cmake"), "--build", folder, *(["--", "-n"] if sheet.dry_run else [])],
    )
    for command in commands:
        code, text = done([part for part in command if part is not None], sheet.left, environment)
        if code != 0:
            why = "no time" if code is None else text.strip()[-500:]
            return {"status": rows.NOT_RUN if code is None else rows.FAILED, "reason": why}
    if sheet.dry_run:
        return {}
    _, text = done([sys.executable, "-c", SERVES], 60)
    reason = text.strip().rpartition("serves: ")[2]
    return {"status": rows.OK if reason == "None" else rows.FAILED, "reason": reason, "architectures": environment}


def triton(sheet: Sheet) -> Mapping[str, Any]:
    """The smallest kernel of the package, compiled and run, or in a dry run interpreted."""
    import torch

    from robustdml_ops.backends.choice import UNAVAILABLE
    from robustdml_ops.engine.rows.triton import TritonRows

    reason = UNAVAILABLE["triton"](sheet.device, torch.float32)
    if reason is not None:
        raise Absent(reason)
    P = torch.randn(33, 17, device=sheet.device)
    U, inverse_norm = torch.empty_like(P), P.new_empty(33)
    TritonRows().normalize_rows(P, U, inverse_norm)
    error = (U - torch.nn.functional.normalize(P)).abs().max().item()
    return {"error": error, "status": rows.OK if error < 1e-6 else rows.FAILED}
