"""``python -m robustdml_ops.doctor``: examines this machine and says what to do about each fault.

It needs no package beyond the library's own dependencies, so that it runs where something is missing.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from robustdml_ops.doctor import machine, ops
from robustdml_ops.doctor.machine import Finding

__all__ = ["main"]


PROGRAM = "python -m robustdml_ops.doctor"


def main(argv: Sequence[str]) -> int:
    """Examine this machine and print the findings; returns the exit status, 1 if there is a fault."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Which backends run on this machine, how exactly and how fast, and how to mend the others.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for notes, too, as for faults")
    arguments = parser.parse_args(argv)
    findings = examine()
    refused = ("fault", "note") if arguments.strict else ("fault",)
    well = not any(one.severity in refused for one in findings)
    try:
        if arguments.json:
            print(json.dumps({"well": well, "findings": [one.record() for one in findings]}))
        else:
            _show(findings)
        sys.stdout.flush()
    except OSError as error:
        # A closed pipe or a full disk. Python would write the rest of the buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"{PROGRAM}: the findings could not be printed: {error}", file=sys.stderr)
        return 1
    return 0 if well else 1


def examine() -> list[Finding]:
    """Run every check; one that raises becomes a finding, too."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("versions", machine.versions),
        ("devices", machine.devices),
        ("native module", machine.native),
        ("threads", machine.threads),
        ("folders", machine.folders),
        # Before the ops, which keep the machine busy themselves.
        ("other work", machine.busy),
    ]
    findings = [Finding.of(name, check) for name, check in checks]
    for device in [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else []):
        findings += ops.served(device)
        findings.append(Finding.of(f"speed on {device.type}", partial(ops.sweep_against_products, device)))
    # Last, when all libraries are loaded.
    return [*findings, Finding.of("OpenMP", machine.pools)]


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(one.name) for one in findings)
    for one in findings:
        mark = "FAULT" if one.severity == "fault" else one.severity
        print(f"{mark:<5}  {one.name:<{width}}  {one.told}")
        if one.way_out is not None:
            print(f"       {'':<{width}}  → {one.way_out}")
    numbers = {kind: sum(one.severity == kind for one in findings) for kind in ("fault", "note")}
    told = [f"{number} {kind}{'s' * (number > 1)}" for kind, number in numbers.items() if number]
    print(", ".join(told) or "all is well")
