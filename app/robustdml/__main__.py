"""The ``robustdml`` command."""

import os
import sys
from io import TextIOWrapper

# What an environment says of threads that wait.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def main() -> int:
    """Run the command line."""
    # GNU OpenMP's waiting threads sleep, which is set before PyTorch is imported; spinning slows busy machines.
    if not any(name in os.environ for name in _WAITING):
        os.environ["OMP_WAIT_POLICY"] = "passive"
    # Names of files may hold what a terminal's encoding has no letters for; no hours of work shall end with that.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    from robustdml.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
