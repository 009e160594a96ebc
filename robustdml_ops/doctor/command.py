"""``robustdml doctor [--json]``: looks at everything, prints it, and exits with 0 if nothing is to be done."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from robustdml_ops.doctor import folders, machine, ops, speed, threads, versions
from robustdml_ops.doctor.finding import Finding

DESCRIPTION = "what runs here, on what, how exactly and how fast, and what to do about what does not"


def main(argv: Sequence[str]) -> int:
    """Examine this machine."""
    parser = argparse.ArgumentParser(
        prog="robustdml doctor", description=DESCRIPTION[0].upper() + DESCRIPTION[1:] + "."
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    as_json = parser.parse_args(argv).json
    findings = examine()
    well = all(one.well for one in findings)
    try:
        if as_json:
            print(json.dumps({"well": well, "findings": [_record(one) for one in findings]}))
        else:
            _show(findings)
        sys.stdout.flush()
    except OSError as error:
        # Whoever read it has gone, or the disk is full: nobody could know what was found. Python would try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"robustdml doctor: what was found could not be printed: {error}", file=sys.stderr)
        return 1
    return 0 if well else 1


def examine() -> list[Finding]:
    """Everything, in the order in which it is told; what cannot be looked at is a finding, too."""
    # Before the ops, which keep the machine busy themselves.
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("versions", versions.versions),
        ("devices", versions.devices),
        ("native module", versions.native),
        ("threads", threads.threads),
        ("folders", folders.folders),
        ("other work", machine.busy),
    ]
    findings = [_look(name, look) for name, look in looks]
    places = [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])
    for device in places:
        findings += ops.served(device)
        findings.append(_look(f"speed on {device.type}", partial(speed.sweep_against_products, device)))
    # After them, when all libraries are loaded.
    return [*findings, _look("OpenMP", machine.pools)]


def _look(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:  # whatever it is, the rest is still to be told
        return Finding.of_failure(name, error)


def _record(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.name,
        "well": finding.well,
        "told": finding.told,
        "way_out": finding.way_out,
        **finding.facts,
    }


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(one.name) for one in findings)
    for one in findings:
        print(f"{'ok ' if one.well else 'SEE'}  {one.name:<{width}}  {one.told}")
        if one.way_out is not None:
            print(f"     {'':<{width}}  → {one.way_out}")
    ill = sum(not one.well for one in findings)
    print("all is well" if not ill else f"{ill} of {len(findings)} want a look")
