"""What a command has left out of the data, in a line of the terminal and in a report."""

import sys
from collections.abc import Sequence
from html import escape

from robustdml.data.images import few


def say_left_out(command: str, left_out: Sequence[str]) -> None:
    """Name the first few, with the reason."""
    if left_out:
        print(f"robustdml {command}: left out {len(left_out):,}: {few(left_out)}", file=sys.stderr)


def left_out_line(left_out: Sequence[str]) -> str:
    """Name them in a report; nothing where there are none."""
    return f"<p>Left out {len(left_out):,}: {escape(few(left_out))}.</p>" if left_out else ""
