"""``python -m experiments COMMAND``: the application's commands and three more, with all data sets and noises."""

import sys
from collections.abc import Sequence

import experiments.data
import experiments.noise  # noqa: F401  (adds noise models)
from experiments import PROGRAM
from robustdml import cli

cli.COMMANDS |= {
    "demo": (
        "experiments.commands.demo",
        "half the labels wrong, four methods, times of the losses, a report: 1–4 minutes on two cores",
    ),
    "negatives": (
        "experiments.commands.negatives",
        "sampled and filtered negatives of ArcFace, where labels are wrong, identities split, or merged",
    ),
    "compare": ("experiments.commands.compare", "every method under every noise, and the claims of the papers"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    return cli.main(argv, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
