"""Every command in README, CONTRIBUTING and docs/ is one that can be given: the real parsers read its arguments.

Nothing is run here. What a command would do begins with `run` of its module, which is replaced by a note of what it was
asked.
"""

import argparse
import re
import runpy
import subprocess
import sys
import warnings
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from robustdml.cli import COMMANDS, main
from robustdml.command_line import CommandParser
from robustdml.settings import read_run_settings
from tests.docs.blocks import PAGES, ROOT, commands, inline_commands, read_blocks

BLOCKS = [block for block in read_blocks() if block.language == "bash"]
# Not code that could be wrong here: it is looked at, or drawn by the site's build.
SHOWN = ("math", "text", "yaml")
# Words of the shell itself.
SHELL = ("cd", "export", "source")


class ParsedError(Exception):
    """The arguments were read."""


def test_every_block_says_what_it_is():
    known = {"bash", "python", "pycon", *SHOWN}
    assert [f"{block}: {block.language!r}" for block in read_blocks() if block.language not in known] == []


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}))
def test_commands_of_blocks_are_read(page, monkeypatch):
    for block in (block for block in BLOCKS if block.page == page):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        for words in commands(block.text):
            _read(words, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_lines_are_read(page, monkeypatch):
    for where, command in inline_commands():
        if where == page:
            _read(commands(command)[0], monkeypatch)


def _read(words, monkeypatch):
    """Let the program that a command names read the rest."""
    program, arguments = Path(words[0]).name, words[1:]
    is_module = "-m" in words and program in ("python", "python3", "torchrun")
    if is_module:
        place = words.index("-m") + 1
        program, arguments = words[place], words[place + 1 :]
    if program == "robustdml":
        _read_robustdml(arguments, monkeypatch)
    elif program in READERS:
        READERS[program](arguments)
    elif not is_module:
        assert program in SHELL, f"{' '.join(words)}: who reads this?"
    elif program == "venv":
        assert arguments
    elif arguments or not (ROOT / program.replace(".", "/") / "__main__.py").is_file():
        _read_argparse(program, arguments, monkeypatch)


def _read_robustdml(arguments, monkeypatch):
    if arguments[:1] and arguments[0] in COMMANDS:
        module = import_module(COMMANDS[arguments[0]][0])
        monkeypatch.setattr(module, "run", _look)
    alone = arguments[-1:] in (["--help"], ["--version"])
    if len(arguments) == 1 and not alone:
        return  # the name of a command, which is in COMMANDS
    try:
        status = main(arguments)
    except SystemExit as left:
        status = left.code
    assert status == 0, f"robustdml {' '.join(arguments)}"


def _look(parsed):
    """In the place of a command: settings that contradict each other are refused before anything runs."""
    if parsed.command == "train" and not parsed.resume and parsed.config is None:
        read_run_settings(vars(parsed), parsed.config, parsed.out, parsed.resume)
    return 0


def _read_argparse(module, arguments, monkeypatch):
    """Start a module as the command does, and stop it once its parser has read the arguments."""
    read = argparse.ArgumentParser.parse_args

    def stop(self, *given, **options):
        read(self, *given, **options)
        raise ParsedError

    place = ROOT / module.replace(".", "/")
    source = (place / "__main__.py" if place.is_dir() else place.with_suffix(".py")).read_text()
    assert "ArgumentParser" in source, f"{module} has no parser"
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it has been imported before
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(sys, "argv", [module, *arguments])
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises((ParsedError, SystemExit)) as ended:
            runpy.run_module(module, run_name="__main__")
    assert getattr(ended.value, "code", 0) == 0, f"{module} {' '.join(arguments)}"  # --help leaves with 0


def _read_experiments(arguments):
    """Let the parser of a command of the experiments read the rest."""
    if not arguments:
        return
    parser = CommandParser(prog="experiments")
    import_module(f"experiments.commands.{arguments[0]}").add_arguments(parser)
    parser.parse_args(arguments[1:])


def _read_pip(arguments):
    for folder, asked in re.findall(r"^(\.|\./app)\[([\w,]+)\]", "\n".join(arguments), re.MULTILINE):
        extras = re.findall(r"^(\w+) = \[", (ROOT / folder / "pyproject.toml").read_text(), re.MULTILINE)
        assert set(asked.split(",")) <= set(extras), asked
    assert arguments[0] in ("install", "download", "wheel")
    for name, value in pairwise(arguments):
        assert name != "-r" or (ROOT / value).is_file(), value


def _read_make(arguments):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(arguments) <= set(targets), arguments


def _read_pytest(arguments):
    for argument in arguments:
        assert argument.startswith("-") or (ROOT / argument).exists(), argument


READERS = {"pip": _read_pip, "make": _read_make, "pytest": _read_pytest, "experiments": _read_experiments}
