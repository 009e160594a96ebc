"""(b) The project's own tests that meet a GPU: kernels first, then what is made of them."""

import importlib.util
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...shapes import Shape
from .. import rows
from ..commands import done
from ..machine import ROOT
from ..sheet import Absent, Sheet

ON_CUDA = "cuda and not emulated"
# Files, and what of them is run.
GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "kernels, native": (("tests/*/test_*_native.py", "tests/native/test_cuda_*.py"), ON_CUDA),
    "kernels, Triton": (("tests/*/test_*_triton.py",), ""),
    "every loss and op": (("tests/package/test_every_call.py",), "cuda"),
    "losses": (("tests/losses/test_*.py", "tests/pairs/test_*.py", "tests/classes/test_class_lse.py"), ON_CUDA),
    "filters": (("tests/robust/test_*.py",), "cuda or gpu"),
}  # fmt: skip
TOLD = 10  # failures of a group
LONGEST_S = 150.0  # for a group, so that the others have their turn


def run(sheet: Sheet) -> None:
    for name, (patterns, selected) in GROUPS.items():
        files = sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))
        sheet.row(name, partial(group, sheet, name, files, selected))


def group(sheet: Sheet, name: str, files: list[str], selected: str, _: Shape) -> Mapping[str, Any]:
    """Run by pytest; in a dry run one fast test in place of them, so that counting is tried."""
    if not files:
        raise Absent("no tests: they are in a checkout alone")
    missing = [module for module in ("pytest", "hypothesis") if importlib.util.find_spec(module) is None]
    if missing:
        raise Absent(f"no {', '.join(missing)}")
    if sheet.dry_run:
        if name != next(iter(GROUPS)):
            return {"files": len(files), "passed": None}
        files, selected = ["tests/package/test_fixtures.py"], ""
    report = Path(os.environ["BENCH_GPU_SITE"]) / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        f"--junitxml={report}",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
    ]
    command += ["-k", selected] if selected else []
    command += ["-n", "8"] if importlib.util.find_spec("xdist") and not sheet.dry_run else []
    # What others' releases warn of is nothing that a kernel could help.
    code, text = done([*command, "-W", "default", "-q", "--no-header", "--tb=short"], min(LONGEST_S, sheet.left))
    if code is None:
        return {"status": rows.NOT_RUN, "reason": "time", "tail": text[-1000:]}
    if not report.exists():
        return {"status": rows.FAILED, "reason": text.strip()[-1000:]}
    return {**counted(report), "files": len(files)}


def counted(report: Path) -> dict[str, Any]:
    """Outcomes in a report of pytest's, and the first failures with their messages."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    told = {case: [child for child in case if child.tag in ("failure", "error")] for case in cases}
    failures = [(case, children[0]) for case, children in told.items() if children]
    skipped = sum(case.find("skipped") is not None for case in cases)
    facts = {"passed": len(cases) - len(failures) - skipped, "failed": len(failures), "skipped": skipped}
    named = [
        f"{case.get('classname')}::{case.get('name')}: {(child.get('message') or '').partition(chr(10))[0][:200]}"
        for case, child in failures[:TOLD]
    ]
    if failures:
        return {"status": rows.FAILED, "reason": f"{len(failures)} failed", "failures": named, **facts}
    if not facts["passed"]:
        return {"status": rows.FAILED, "reason": "none ran", **facts}
    return facts
