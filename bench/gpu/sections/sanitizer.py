"""(c) compute-sanitizer over every kernel at odd shapes, once each, without the caching allocator."""

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...shapes import Shape
from .. import rows
from ..commands import done, tool
from ..sheet import Absent, Sheet

TOOLS = ("memcheck", "racecheck", "synccheck")
BACKENDS = ("triton", "native")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")


def run(sheet: Sheet) -> None:
    for backend in BACKENDS:  # first those that are taken first
        for name in TOOLS:
            sheet.row(name, partial(checked, sheet, name, backend), variant=backend)


def checked(sheet: Sheet, name: str, backend: str, _: Shape) -> Mapping[str, Any]:
    """Run the kernels of a backend under a tool; in a dry run once, without it."""
    script = [sys.executable, "-m", f"{__package__.rpartition('.')[0]}.kernels_once", backend, str(sheet.device)]
    sanitizer = tool("compute-sanitizer")
    if sheet.dry_run and (name, backend) == (TOOLS[0], BACKENDS[0]):
        code, text = done(script, sheet.left)
        return {"status": rows.FAILED, "reason": text[-500:]} if code else {"calls": int(text.split()[-2])}
    if sanitizer is None or sheet.dry_run:
        raise Absent("a dry run has no kernels to check" if sheet.dry_run else "no compute-sanitizer")
    # What torch asks of the driver and is denied is none of the kernels' errors.
    options = ["--tool", name, "--report-api-errors", "no", "--print-limit", "20"]
    code, text = done([sanitizer, *options, *script], sheet.left, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    return judged(code, text)


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
