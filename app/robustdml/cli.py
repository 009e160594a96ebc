"""The ``robustdml`` command. Each of its commands is a module with ``add_arguments`` and ``run``.

One that can go on after an interruption says how in ``way_on``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

from robustdml.cache import nothing_kept
from robustdml.command_line import CommandParser
from robustdml.data.images import limit_pixels, warnings_with_files
from robustdml.errors import UnknownNameError, UsageError, disk_error, in_one_line, is_want_of_memory, reason_of, say
from robustdml_ops import __version__

# Module and help of each command; the experiments add theirs.
COMMANDS = {
    "train": ("robustdml.commands.train", "train an embedding on Glyphs, images of a folder or list, or features"),
    "embed": ("robustdml.commands.embed", "embeddings of images by a trained network, as an .npz file"),
    "evaluate": ("robustdml.commands.evaluate", "retrieval and verification by a trained network on other data"),
    "search": ("robustdml.commands.search", "the most similar images of a gallery, as a page and as JSON"),
    "export": ("robustdml.commands.export", "a trained network as a program of torch.export or as an ONNX file"),
    "duplicates": ("robustdml.commands.duplicates", "find images of a folder that are copies, and remove them"),
    "audit": ("robustdml.commands.audit", "find the wrong labels of images of a folder or list, or of features"),
    "apply": ("robustdml.commands.apply", "a data set without the wrong labels that an audit has found"),
}


def main(argv: Sequence[str] | None = None, program: str = "robustdml") -> int:
    """Run the command line of a program."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parsed, name = argparse.Namespace(way_on=None), program
    try:
        parsed = _parser(arguments, program).parse_args(arguments)
        name = f"{program} {parsed.command}"
        if "max_megapixels" in parsed:
            limit_pixels(parsed.max_megapixels)
        with warnings_with_files(), nothing_kept() if vars(parsed).get("no_cache") else nullcontext():
            status: int = parsed.run(parsed)
        # What is printed may wait in a buffer until here, and meet a full disk.
        sys.stdout.flush()
    except UnknownNameError as error:
        return _refuse(name, str(error), parsed.usage)
    except UsageError as error:
        return _refuse(name, str(error))
    except BrokenPipeError:
        # Python would try to write what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _refuse(name, disk_error(error))
    except (MemoryError, RuntimeError) as error:
        if not is_want_of_memory(error):
            raise
        way_out = "try smaller batches or images, fewer workers, or a machine that has more"
        return _refuse(name, f"not enough memory ({reason_of(error)}); {way_out}")
    except SystemExit as end:
        if not hasattr(end, "told"):
            raise
        if end.told:  # By `robustdml.run.preemption.Preempted`
            say(f"{name}: {end.told}; {parsed.way_on(parsed)}", sys.stderr)
        return int(end.code or 0)
    except KeyboardInterrupt:
        way_on = "" if parsed.way_on is None else f"; {parsed.way_on(parsed)}"
        say(f"{name}: interrupted{way_on}", sys.stderr)
        return 130
    return status


def _refuse(name: str, message: str, usage: str = "") -> int:
    print(f"{usage}{name}: {in_one_line(message)}", file=sys.stderr)
    return 2


def _parser(arguments: Sequence[str], program: str) -> CommandParser:
    parser = CommandParser(
        prog=program,
        description="Deep metric learning with very many classes and wrong labels.",
        epilog=f"{program} COMMAND --help tells more.",
        usage="%(prog)s [--help | --version] COMMAND …",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=program)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, (module_name, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        # Only the chosen command is imported: help and errors come at once.
        if name == chosen:
            module = import_module(module_name)
            module.add_arguments(command)
            command.shorten_usage()
            command.set_defaults(run=module.run, way_on=getattr(module, "way_on", None), usage=command.format_usage())
    return parser
