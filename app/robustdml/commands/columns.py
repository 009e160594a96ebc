"""The options of commands that name the columns of a list."""

import argparse

from robustdml.data.lists import COLUMN_TEXTS, Columns


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the columns of a list."""
    for name, text in COLUMN_TEXTS.items():
        parser.add_argument(f"--{name}-column", default="", metavar="NAME", help=text)


def columns_of(arguments: argparse.Namespace) -> Columns:
    """The columns that were named."""
    return Columns(arguments.path_column, arguments.label_column, arguments.split_column)
