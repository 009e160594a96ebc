"""A parser of the command line that suggests the nearest option and shows the usage in one line."""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from robustdml.data.images import MOST_MEGAPIXELS
from robustdml.data.readings import what_is_kept
from robustdml.errors import UnknownNameError, did_you_mean, expanded, few, in_one_line, say


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests known options for unknown ones, and takes no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, **settings}, allow_abbrev=False)

    def shorten_usage(self) -> None:
        """Keep only required arguments in the usage line; call it after all options are declared."""
        needed = [word for action in self._actions for word in _needed(action)]
        self.usage = " ".join(["%(prog)s [OPTIONS]", *needed, "  (--help lists the options)"])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse unknown arguments; the parser of a command does so itself and shows its own usage."""
        parsed, unknown = super().parse_known_args(args, namespace)
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if options:
            known = list(self._option_string_actions)
            self.error("; ".join(f"unknown option {option}{_meant(option, known)}" for option in options))
        if unknown:
            hint = f"; did you mean --data {unknown[0]}?" if "--data" in self._option_string_actions else ""
            self.error(f"unexpected argument {unknown[0]!r}{hint}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong: a shell may have filled in names of files."""
        super().error(in_one_line(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = (action.option_strings or [str(action.metavar)])[-1]
            self.error(str(UnknownNameError(name, str(value), map(str, action.choices))))


def path(text: str) -> Path:
    """Read a path, as the type of an option."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return expanded(text)


def duration(text: str) -> float:
    """Read a time in seconds, as the type of an option."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 90s, 10m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def add_size_limit(parser: argparse._ActionsContainer) -> None:
    """Add the option that limits the size of images, which may come from strangers."""
    parser.add_argument(
        "--max-megapixels",
        type=_positive,
        default=MOST_MEGAPIXELS,
        metavar="M",
        help="images of more million pixels are not decoded",
    )


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def is_off(default: object) -> bool:
    """True for defaults that help does not show: None, False and the empty text, but not 0."""
    return default is None or default is False or default == ""


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that prints results as JSON."""
    parser.add_argument("--json", action="store_true", help="print what was found or made as one object of JSON")


def print_json(results: Mapping[str, Any]) -> None:
    """Print results as one object of JSON."""
    print(json.dumps(results, indent=2))


def say_left_out(command: str, left_out: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Print how data was read, how much is cached, and the first few files left out, with the reason."""
    kept = what_is_kept()
    for note in dict.fromkeys([*notes, *([kept] if kept else [])]):
        say(f"robustdml {command}: {note}", sys.stderr)
    if left_out:
        say(f"robustdml {command}: left out {len(left_out):,}: {few(left_out)}", sys.stderr)


def _meant(option: str, known: Sequence[str]) -> str:
    """Suggest an option, also by the first letters of its words, as --lr for --learning-rate."""
    initials = {"--" + "".join(word[0] for word in name[2:].split("-")): name for name in reversed(known) if name[2:]}
    return f"; did you mean {initials[option]}?" if option in initials else did_you_mean(option, known)


def _needed(action: argparse.Action) -> Sequence[str]:
    """Words of the usage line for an argument that has to be given, none for one that has not."""
    name = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return [{"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)]
    return [action.option_strings[-1], name] if action.required else []


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, save where an option is off or has none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if is_off(action.default) else super()._get_help_string(action)
