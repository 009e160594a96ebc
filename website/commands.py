"""A page for every command of ``robustdml``, made from the parser that reads its arguments."""

import argparse
from functools import cache
from importlib import import_module

from robustdml.cli import COMMANDS
from robustdml.command_line import CommandParser


def addresses() -> dict[str, str]:
    """Address of the page of each command."""
    return {name: f"api/commands/{name}.md" for name in COMMANDS}


def pages() -> dict[str, str]:
    """Texts by address."""
    return {address: _page(name) for name, address in addresses().items()}


@cache
def parser_of(name: str) -> CommandParser:
    """Read the arguments of one command, as the command line does.

    Parameters
    ----------
    name : str
        Of the command.

    Returns
    -------
    CommandParser
        Its parser.
    """
    parser = CommandParser(prog=f"robustdml {name}", description=COMMANDS[name])
    import_module(f"robustdml.commands.{name}").add_arguments(parser)
    return parser


def _page(name: str) -> str:
    parser = parser_of(name)
    about = COMMANDS[name]
    parts = [f"# robustdml {name}\n\n{about[0].upper()}{about[1:]}.\n"]
    parser.shorten_usage()
    parts.append(f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n")
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in group._group_actions if action.dest != "help"]
        if rows:
            title = (group.title or "options").capitalize()
            parts.append("\n".join([f"## {title}\n", "| argument | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _row(parser: CommandParser, action: argparse.Action) -> str:
    shown = ", ".join(f"`{word}`" for word in _words(parser, action))
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    text = text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
    return f"| {shown} | {text} |"


def _words(parser: CommandParser, action: argparse.Action) -> list[str]:
    if not action.option_strings:
        return [str(action.metavar or action.dest.upper())]
    value = "" if action.nargs == 0 else " " + parser._get_formatter()._format_args(action, action.dest.upper())
    return [f"{flag}{value}".replace("|", r"\|") for flag in action.option_strings]
