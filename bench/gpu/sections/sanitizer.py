"""(c) compute-sanitizer over every kernel at odd shapes, once each, without the caching allocator."""

import contextlib
import fcntl
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...shapes import Shape
from .. import rows
from ..commands import done, tool
from ..kernels_once import ROOT, emulated
from ..sheet import Absent, Sheet

TOOLS = ("memcheck", "racecheck", "synccheck")
BACKENDS = ("triton", "native")
SCRIPT = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.kernels_once")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")


def run(sheet: Sheet) -> None:
    for backend in BACKENDS:  # first those that are taken first
        for name in TOOLS:
            sheet.row(name, partial(checked, sheet, name, backend), variant=backend)


def checked(sheet: Sheet, name: str, backend: str, _: Shape) -> Mapping[str, Any]:
    """Run the kernels of a backend under a tool."""
    if sheet.dry_run:
        return without_a_tool(sheet, name, backend)
    sanitizer = tool("compute-sanitizer")
    if sanitizer is None:
        raise Absent("no compute-sanitizer")
    # What torch asks of the driver and is denied is none of the kernels' errors.
    options = ["--tool", name, "--report-api-errors", "no", "--print-limit", "20"]
    command = [sanitizer, *options, *SCRIPT, backend, "cuda"]
    return judged(*done(command, sheet.left, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}))


def without_a_tool(sheet: Sheet, name: str, backend: str) -> Mapping[str, Any]:
    """The kernels once, Triton's in its interpreter, the native ones in emulation."""
    if name != TOOLS[0]:
        raise Absent("a dry run has no tool")
    with built() if backend == "native" else contextlib.nullcontext():
        code, text = done([*SCRIPT, backend, "emulated" if backend == "native" else "cpu"], sheet.left)
    return {"status": rows.FAILED, "reason": text[-500:]} if code else {"calls": int(text.split()[-2])}


@contextlib.contextmanager
def built() -> Iterator[None]:
    """The emulated module is there within; tests that are run at the same time may be building it."""
    lock = emulated().with_name(".lock")
    if not emulated().exists() or not lock.exists():
        raise Absent("the emulated module is not built: tests/anchor/test_anchor_native.py builds it")
    newest = max(path.stat().st_mtime for path in (ROOT / "csrc").rglob("*") if path.is_file())
    if emulated().stat().st_mtime < newest:
        raise Absent("the emulated module is older than csrc: tests/anchor/test_anchor_native.py builds it anew")
    with lock.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Absent("the emulated module is being built") from error
        yield


def judged(code: int | None, text: str) -> dict[str, Any]:
    """What a tool's last line says."""
    found = SUMMARY.findall(text)
    if code is None:
        return {"status": rows.NOT_RUN, "reason": "time", "tail": text[-500:]}
    if not found:
        return {"status": rows.FAILED, "reason": f"no summary: {text.strip()[-500:]}"}
    errors = int(found[-1])
    if errors or code:
        first = [line for line in text.splitlines() if line.startswith("=========")][:30]
        return {"status": rows.FAILED, "reason": f"{errors} errors, code {code}", "errors": errors, "told": first}
    return {"errors": 0}
