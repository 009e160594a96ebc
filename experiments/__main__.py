"""``python -m experiments COMMAND``: the application's commands with the data sets and noises of the experiments."""

import sys

import experiments.data
import experiments.noise  # noqa: F401  (adds noise models)
from robustdml.cli import COMMANDS, main

COMMANDS |= {
    "demo": ("experiments.commands.demo", "train with half the labels wrong, time the losses, and write a report"),
    "compare": ("experiments.commands.compare", "train every method against every noise, and hold the papers to it"),
}

if __name__ == "__main__":
    sys.exit(main())
