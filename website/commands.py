"""A page for every command of ``robustdml``, made from the parser that reads its arguments."""

import argparse
from functools import cache
from importlib import import_module

from robustdml.cli import COMMANDS
from robustdml.command_line import CommandParser


def addresses() -> dict[str, str]:
    """Address of the page of each command."""
    return {
        name: f"api/commands/{name}.md" for name, (module, _) in COMMANDS.items() if module.startswith("robustdml.")
    }


def pages() -> dict[str, str]:
    """Texts by address."""
    return {address: _page(name) for name, address in addresses().items()}


@cache
def parser_of(name: str) -> CommandParser:
    """The parser of a command, filled as the command line fills it."""
    module, about = COMMANDS[name]
    parser = CommandParser(prog=f"robustdml {name}", description=about)
    import_module(module).add_arguments(parser)
    return parser


def _page(name: str) -> str:
    parser, about = parser_of(name), COMMANDS[name][1]
    parts = [f"# robustdml {name}\n\n{_capitalised(about)}.\n"]
    parser.shorten_usage()
    parts.append(f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n")
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in group._group_actions if action.dest != "help"]
        if rows:
            title = _capitalised(group.title or "options")
            parts.append("\n".join([f"## {title}\n", "| argument | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _capitalised(text: str) -> str:
    """With a capital first letter; names such as Proxy-NCA keep theirs."""
    return text[0].upper() + text[1:]


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
