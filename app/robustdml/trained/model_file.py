"""The model file: weights and description in one file of plain tensors, numbers and texts, safe to open."""

from pathlib import Path

import torch
from torch import Tensor

from robustdml.cache import write_whole
from robustdml.errors import UsageError
from robustdml.plain_files import read_plain
from robustdml.trained.model_card import ModelCard

FILE_NAME = "model.pt"
KIND = "robustdml_ops model"
FORMAT = 1


def save_model(path: Path, card: ModelCard, state: dict[str, Tensor]) -> None:
    """Write a model file, replacing the one before."""
    weights = {name: value.detach().cpu() for name, value in state.items()}
    content = {"kind": KIND, "format": FORMAT, **card.as_dict(), "preprocessing": card.preprocessing, "state": weights}
    write_whole(path, lambda file: torch.save(content, file))


def read_model(path: Path) -> tuple[ModelCard, dict[str, Tensor]]:
    """Read a model file; nothing in it is run."""
    file = _model_file(path)
    content = read_plain(file, "model file")
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UsageError(f"{file}: not a model file; `robustdml train --out FOLDER` writes one, FOLDER/{FILE_NAME}")
    if content.get("format") != FORMAT:
        raise UsageError(
            f"{file}: a model file of format {content.get('format')}, written by robustdml_ops "
            f"{content.get('package_version')}; this version reads format {FORMAT}"
        )
    try:
        card, state = ModelCard.from_dict(content), content["state"]
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise TypeError("its state is no tensors by name")
        head = tuple(state["head.weight"].shape)
        if head != (card.embedding_size, card.num_features):
            raise ValueError(f"its embedding layer is of shape {head}")
        return card, state
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: a model file with parts missing or wrong ({error!r})") from error


def _model_file(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if not path.is_dir():
        return path
    if not (path / FILE_NAME).is_file():
        begun = (path / "checkpoint.pt").exists()
        why = "its run has not ended: go on with `robustdml train --resume`" if begun else "it is no folder of a run"
        raise UsageError(f"{path}: no {FILE_NAME} in it; {why}")
    return path / FILE_NAME
