"""``robustdml doctor [--json]``: looks at everything, prints it, and exits with 0 if nothing is to be done."""

import argparse
import json
from collections.abc import Sequence

import torch

from robustdml_ops.doctor import machine, ops, speed, versions
from robustdml_ops.doctor.finding import Finding

DESCRIPTION = "what runs here, on what, how exactly and how fast, and what to do about what does not"


def main(argv: Sequence[str]) -> int:
    """Examine this machine.

    Parameters
    ----------
    argv : sequence of str
        ``--json`` prints the findings for programs.

    Returns
    -------
    int
        0 if nothing is to be done, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="robustdml doctor", description=DESCRIPTION[0].upper() + DESCRIPTION[1:] + "."
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    as_json = parser.parse_args(argv).json
    findings = examine()
    if as_json:
        print(json.dumps({"well": all(one.well for one in findings), "findings": [_record(one) for one in findings]}))
    else:
        _show(findings)
    return 0 if all(one.well for one in findings) else 1


def examine() -> list[Finding]:
    """Everything, in the order in which it is told."""
    # Before the ops, which keep the machine busy themselves.
    findings = [versions.versions(), versions.devices(), versions.native(), machine.threads(), machine.busy()]
    places = [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])
    for device in places:
        of_ops = ops.served(device)
        findings += of_ops
        findings.append(speed.sweep_against_products(of_ops[0].facts["able"][0], device))
    # After them, when all libraries are loaded.
    return [*findings, machine.pools()]


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
