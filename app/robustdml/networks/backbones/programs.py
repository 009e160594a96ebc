"""Backbones that are programs of ``torch.export``, files with the code of a network and its weights."""

from pathlib import Path

import torch
from torch import Tensor, nn

from robustdml.errors import UsageError, reason_of
from robustdml.plain_files import check_plain


def is_program(name: str) -> bool:
    """Tell whether a name means a file of a program."""
    return name.endswith(".pt2")


class Program(nn.Module):
    """A program as it was exported: it has one mode, and its first output is the features."""

    def __init__(self, exported: nn.Module) -> None:
        super().__init__()
        self.exported = exported

    def train(self, mode: bool = True) -> "Program":
        """Note the mode, which the program does not have."""
        self.training = mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Make features."""
        made = self.exported(images)
        features: Tensor = made[0] if isinstance(made, tuple | list) else made
        return features


def load_program(path: Path) -> Program:
    """Read a program of the user's own: opening it may run code that is in it."""
    if not path.is_file():
        raise UsageError(f"backbone {path}: no such file")
    check_plain(path, "program")
    try:
        return Program(torch.export.load(path).module())
    except Exception as error:  # Of a file that is none: nearly anything.
        raise UsageError(f"backbone {path}: not a program of torch.export ({reason_of(error)})") from error
