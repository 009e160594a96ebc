"""Files of weights, read without running anything that is in them."""

from pathlib import Path

from torch import Tensor, nn

from robustdml.errors import UsageError
from robustdml.plain_files import read_plain


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a ``state_dict`` that `torch.save` wrote."""
    if not path.is_file():
        raise UsageError(f"backbone weights {path}: no such file")
    state = read_plain(path, "file of weights")
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"backbone weights {path}: expected a state_dict, tensors by name")
    return dict(state)


def load_weights(network: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Put weights into a network, all of them."""
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise UsageError(f"backbone weights {path}: not of this network; {' '.join(lines[1:2]).strip()}") from error
