"""``robustdml bench``: run the benchmarks, then print what they found as a table and a plot."""

import argparse
import json
from pathlib import Path

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
        "--out", type=Path, default=Path("out/bench"), help="folder for bench.json, bench.md and bench.png"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="run what pytest's -k selects, as 'proxy and 1e5'")
    parser.add_argument("--json", type=Path, help="show an earlier result instead of measuring")


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
    out, path = arguments.out, arguments.json
    out.mkdir(parents=True, exist_ok=True)
    if path is None:
        path = out / "bench.json"
        measure(path, arguments.only)
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} holds no benchmark result: {error}") from error
    text = report(content)
    (out / "bench.md").write_text(text)
    print(text)
    losses = [row for row in timing_rows(content) if row["flops"]]
    if losses:
        plot(losses, out / "bench.png")
        print(f"plot: {out / 'bench.png'}")
    return 0
