"""``robustdml doctor``: :mod:`robustdml_ops.doctor`, which also looks at the application's cache."""

import argparse

from robustdml.cache import cache_folder
from robustdml_ops import doctor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for notes, too, as for faults")


def run(arguments: argparse.Namespace) -> int:
    given = [f"--{name}" for name in ("json", "strict") if getattr(arguments, name)]
    return doctor.main(given, "robustdml doctor", {"cache of data (ROBUSTDML_CACHE)": cache_folder})
