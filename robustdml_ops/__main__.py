"""The ``robustdml`` command; what it runs needs the extra ``[recipes]``."""

import sys


def main() -> int:
    """Run the command line, or say in one line what has to be installed for it."""
    try:
        from robustdml_ops.recipes.cli import main as command
    except ImportError as error:
        print(f"robustdml: {error}", file=sys.stderr)
        return 2
    return command()


if __name__ == "__main__":
    sys.exit(main())
