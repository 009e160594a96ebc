"""``python -m robustdml_ops.bench``: run the benchmarks and print what they measured as a table and a plot."""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from robustdml_ops.bench.suite import BenchError, measure, plot, report, timing_rows


def main() -> int:
    """Show a new or an earlier result; returns the exit status, 2 for an error."""
    parser = argparse.ArgumentParser(prog="python -m robustdml_ops.bench", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), help="folder for bench.json, bench.md and bench.png"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="run what pytest's -k selects, as 'proxy and 1e5'")
    parser.add_argument("--json", type=Path, help="show an earlier result instead of measuring")
    arguments = parser.parse_args()
    try:
        show(arguments.out, arguments.only, arguments.json)
    except BenchError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def show(out: Path, only: str, results: Path | None) -> None:
    """Print the table, and write it and the plot to ``out``."""
    if results is not None and not results.exists():
        raise BenchError(f"--json {results}: no such file")
    out.mkdir(parents=True, exist_ok=True)
    if results is None:
        results = out / "bench.json"
        measure(results, only)
    try:
        content = json.loads(results.read_text())
    except ValueError as error:
        raise BenchError(f"{results} holds no benchmark result: {error}") from error
    text = report(content)
    (out / "bench.md").write_text(text)
    print(text)
    losses = [row for row in timing_rows(content) if row["flops"]]
    if losses and find_spec("matplotlib") is None:
        print("no plot: it needs matplotlib")
    elif losses:
        plot(losses, out / "bench.png")
        print(f"plot: {out / 'bench.png'}")


if __name__ == "__main__":
    sys.exit(main())
