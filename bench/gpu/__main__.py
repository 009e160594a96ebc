"""``python -m bench.gpu``: run, draw, adopt; docs/gpu.md says how."""

import argparse
import sys
from pathlib import Path

from .machine import ROOT
from .plan import LETTERS, MINUTES, SECTIONS
from .rows import read


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, help="folder of the results; they are added to what is there")
    parser.add_argument("--only", default=LETTERS, metavar="LETTERS", help=f"sections to run, of {LETTERS}")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of them (default: %(default)s)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels, for packages that this machine lacks")
    parser.add_argument("--commit", help="of this copy, where it is no repository")
    parser.add_argument("--dry-run", action="store_true", help="every section at small shapes on the CPU")
    parser.add_argument("--draw", type=Path, metavar="RESULTS", help="tables and a plot of a file or folder of results")
    parser.add_argument("--adopt", type=Path, metavar="RESULTS", help="write the winners into cards.json")
    parser.add_argument("--predict", action="store_true", help="print what is predicted, with the counts behind it")
    given = parser.parse_args(arguments)
    unknown = set(given.only) - set(LETTERS)
    if unknown:
        parser.error(f"--only {given.only}: no section {', '.join(sorted(unknown))}; there are {LETTERS}")
    if given.wheels and not given.wheels.is_dir():
        parser.error(f"--wheels {given.wheels}: no such folder")
    for results in filter(None, (given.draw, given.adopt)):
        if not read(results):
            parser.error(f"{results} holds no results")
    if given.draw:
        from .report import draw

        print(draw(given.draw))
    elif given.adopt:
        from .adopt import NothingToAdopt, adopt

        try:
            print(adopt(read(given.adopt)))
        except NothingToAdopt as error:
            parser.error(f"--adopt {given.adopt}: {error}")
    elif given.predict:
        from .targets import predictions

        print(predictions())
    elif given.out is None:
        parser.error("OUT, --draw, --adopt or --predict is wanted")
    else:
        from .machine import NoCard
        from .running import run

        chosen = [section for section in SECTIONS if section.letter in given.only]
        wheels = given.wheels and given.wheels.resolve()
        try:
            run(given.out.resolve(), chosen, given.minutes, given.dry_run, wheels, given.commit)
        except NoCard as error:
            parser.error(f"no GPU ({error}); --dry-run runs every section on the CPU")
        print(f"{given.out}; tables: python -m {__package__} --draw {given.out}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
