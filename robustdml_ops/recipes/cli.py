"""The ``robustdml`` command. Each of its commands is a module with ``add_arguments`` and ``run``.

One that can go on after an interruption says how in ``WAY_ON``.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from robustdml_ops.recipes.errors import UsageError

# Each is the module of its name in `robustdml_ops.recipes.commands`.
COMMANDS = {
    "train": "train an embedding on Glyphs, a folder of images or a file of features",
    "demo": "train with half the labels wrong, time the losses, and write a report to look at",
    "compare": "train every method against every noise over several seeds, and hold the papers to it",
    "bench": "measure speed and memory of the losses against their floors",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        0 when all went well, 2 for an error of use (told in one line), 130 when interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parsed = _parser(arguments).parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except (UsageError, OSError) as error:
        print(f"robustdml {parsed.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"robustdml {parsed.command}: interrupted{parsed.way_on}", file=sys.stderr)
        return 130
    return status


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="robustdml",
        description="Deep metric learning with very many classes and wrong labels.",
        epilog="robustdml COMMAND --help tells more.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, text in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", formatter_class=_HelpFormatter
        )
        # Only the chosen command is imported: help and errors come at once.
        if name == chosen:
            module = import_module(f"robustdml_ops.recipes.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run, way_on=getattr(module, "WAY_ON", ""))
    return parser


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, save where an option is off or has none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, "") else super()._get_help_string(action)
