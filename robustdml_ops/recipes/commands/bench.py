"""``robustdml bench``: run the benchmarks, then print what they found as a table and a plot."""

import argparse
import json
from pathlib import Path

from robustdml_ops.recipes.command_line import path
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evidence.benchmarks import measure, plot, report, timing_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Of the command.
    """
    parser.add_argument(
        "--out", type=path, default=Path("out/bench"), help="folder for bench.json, bench.md and bench.png"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="run what pytest's -k selects, as 'proxy and 1e5'")
    parser.add_argument("--json", type=path, help="show an earlier result instead of measuring")


def run(arguments: argparse.Namespace) -> int:
    """Measure, or read what was measured, and show it.

    Parameters
    ----------
    arguments : Namespace
        Parsed options.

    Returns
    -------
    int
        0.
    """
    out, results = arguments.out, arguments.json
    if results is not None and not results.exists():
        raise UsageError(f"--json {results}: no such file")
    out.mkdir(parents=True, exist_ok=True)
    if results is None:
        results = out / "bench.json"
        measure(results, arguments.only)
    try:
        content = json.loads(results.read_text())
    except ValueError as error:
        raise UsageError(f"{results} holds no benchmark result: {error}") from error
    text = report(content)
    (out / "bench.md").write_text(text)
    print(text)
    losses = [row for row in timing_rows(content) if row["flops"]]
    if losses:
        plot(losses, out / "bench.png")
        print(f"plot: {out / 'bench.png'}")
    return 0
