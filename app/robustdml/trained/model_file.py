"""The model file: weights and description in one file of plain tensors, numbers and texts, safe to open."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from robustdml.errors import UsageError
from robustdml.plain_files import read_plain, save_plain

# Of sizes in a model file, which may come from strangers: memory is given by them.
_LARGEST, _LARGEST_IMAGE = 2**24, 2**14
LINEAR, IDENTITY = "linear", "identity"


@dataclass(frozen=True)
class ModelCard:
    """Description of a trained network; it goes with its weights into the model file."""

    backbone: str  # Its name, as `robustdml.networks.backbones.choice` knows it
    input_shape: tuple[int, ...]  # Of one sample: (channels, S, S) of an image, or (F,) of features
    num_features: int  # Features that the backbone gives to the embedding layer
    embedding_size: int  # D
    class_names: tuple[str, ...]  # The classes that it was trained on
    trained_by: dict[str, Any]  # The run: its settings, the size of its data, and its last record of the history
    package_version: str  # Of robustdml_ops, that trained it
    layer: str = LINEAR  # The embedding layer: `LINEAR`, or `IDENTITY` where the features are the embeddings

    @property
    def takes_images(self) -> bool:
        """Whether it takes images rather than features."""
        return len(self.input_shape) == 3

    @property
    def channels(self) -> int:
        """Channels of the images: 1 for grey, 3 for colour; 0 where it takes features."""
        return self.input_shape[0] if self.takes_images else 0

    @property
    def image_size(self) -> int:
        """Side of the images in pixels; 0 where it takes features."""
        return self.input_shape[-1] if self.takes_images else 0

    @property
    def takes(self) -> str:
        """What it takes, for people."""
        if not self.takes_images:
            return f"{self.input_shape[0]} features"
        colour = "colour" if self.channels == 3 else "grey"
        return f"{colour} images of {self.image_size}×{self.image_size} pixels"

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What is to be done to a sample before the network takes it; its own normalisation is within the network."""
        if not self.takes_images:
            return {"input": "features", "shape": ["batch", *self.input_shape], "dtype": "float32"}
        return {
            "input": "images",
            "shape": ["batch", *self.input_shape],
            "dtype": "float32",
            "upright": "by the EXIF orientation",
            "mode": "RGB" if self.channels == 3 else "L",
            "resize": "shorter side to the size, bicubic, antialiased",
            "crop": "central square",
            "range": [0.0, 1.0],
            "normalisation": "none to be done: the network holds its own",
        }

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as it is stored."""
        return {**asdict(self), "input_shape": list(self.input_shape), "class_names": list(self.class_names)}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "ModelCard":
        """Make it of what `as_dict` gave."""
        given = {field.name: stored[field.name] for field in fields(cls)}
        card = cls(**{**given, "input_shape": tuple(given["input_shape"]), "class_names": tuple(given["class_names"])})
        sizes = (*card.input_shape, card.num_features, card.embedding_size)
        if not all(isinstance(size, int) and 0 < size <= _LARGEST for size in sizes):
            raise ValueError(f"sizes {sizes}: expected integers from 1 to {_LARGEST:,}")
        square = len(card.input_shape) == 3 and card.input_shape[1] == card.input_shape[2] <= _LARGEST_IMAGE
        if len(card.input_shape) != 1 and not (square and card.input_shape[0] in (1, 3)):
            raise ValueError(f"input_shape={card.input_shape}: expected (F,), (1, S, S) or (3, S, S)")
        if not all(isinstance(name, str) for name in (card.backbone, *card.class_names)):
            raise TypeError("names that are no texts")
        if card.layer not in (LINEAR, IDENTITY):
            raise ValueError(f"layer={card.layer!r}: expected {LINEAR} or {IDENTITY}")
        return card


MODEL_FILE = "model.pt"
KIND = "robustdml_ops model"
FORMAT = 1


def save_model(path: Path, card: ModelCard, state: dict[str, Tensor]) -> None:
    """Write a model file, replacing the one before."""
    weights = {name: value.detach().cpu() for name, value in state.items()}
    content = {"kind": KIND, "format": FORMAT, **card.as_dict(), "preprocessing": card.preprocessing, "state": weights}
    save_plain(path, content)


def read_model(path: Path) -> tuple[ModelCard, dict[str, Tensor]]:
    """Read a model file; nothing in it is run."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    file = path / MODEL_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        begun = (path / "checkpoint.pt").exists()
        why = "its run has not ended: go on with `robustdml train --resume`" if begun else "it is no folder of a run"
        raise UsageError(f"{path}: no {MODEL_FILE} in it; {why}")
    content = read_plain(file, "model file")
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UsageError(f"{file}: not a model file; `robustdml train --out FOLDER` writes one, FOLDER/{MODEL_FILE}")
    if content.get("format") != FORMAT:
        raise UsageError(
            f"{file}: a model file of format {content.get('format')}, written by robustdml_ops "
            f"{content.get('package_version')}; this version reads format {FORMAT}"
        )
    try:
        card, state = ModelCard.from_dict(content), content["state"]
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise TypeError("its state is no tensors by name")
        shape = (card.num_features, card.num_features)
        head = tuple(state["head.weight"].shape) if card.layer == LINEAR else shape
        if head != (card.embedding_size, card.num_features):
            raise ValueError(f"its embedding layer is of shape {head}")
        return card, state
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: a model file with parts missing or wrong ({error!r})") from error
