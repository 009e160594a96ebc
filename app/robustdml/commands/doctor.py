"""``robustdml doctor``: see :mod:`robustdml_ops.doctor`, which runs without the extra of the recipes, too."""

import argparse

from robustdml_ops.doctor.command import main


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Examine this machine."""
    return main(["--json"] if arguments.json else [])
