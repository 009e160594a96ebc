"""``robustdml export``: a trained network for other programs."""

import argparse

from robustdml.command_line import path
from robustdml.commands.embed import add_model_arguments, open_model
from robustdml.progress import progress_bar
from robustdml.trained.exporting import export_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "-o", "--out", type=path, required=True, metavar="FILE",
        help="FILE.pt2 for torch.export, or FILE.onnx (needs the extra export); FILE.json beside it tells how images "
        "are prepared",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    with progress_bar("export") as report:
        embedder = open_model(arguments, report)
        report(f"writing {arguments.out}", 0, 0)
        metadata, difference = export_model(embedder, arguments.out)
    takes = embedder.card.takes
    print(f"{arguments.out}: takes {takes}; no number differs from the network's by more than {difference:.1e}")
    print(f"{metadata}: how what it takes is prepared, and what trained it")
    return 0
