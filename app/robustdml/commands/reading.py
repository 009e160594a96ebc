"""The options of commands that read images: the columns of a list, and whether anything is kept."""

import argparse

from robustdml.data.lists import COLUMN_TEXTS, PATTERN_TEXT, Columns
from robustdml.settings import DataSettings


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the columns of a list, and the one that keeps nothing."""
    for name, text in COLUMN_TEXTS.items():
        parser.add_argument(f"--{name}-column", default="", metavar="NAME", help=text)
    parser.add_argument("--label-pattern", default="", metavar="REGEX", help=PATTERN_TEXT)
    add_cache_argument(parser)


def add_cache_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option ``--no-cache``."""
    text = "use no features of images that were made before, and keep none"
    parser.add_argument("--no-cache", action="store_true", help=text)


def columns_of(arguments: argparse.Namespace | DataSettings) -> Columns:
    """The columns that were named, and the pattern of labels."""
    return Columns(arguments.path_column, arguments.label_column, arguments.split_column, arguments.label_pattern)
