"""What there is to know of a trained network: what it takes, what it gives, and what trained it."""

from dataclasses import asdict, dataclass, fields
from typing import Any

# Of sizes in a model file, which may come from strangers: memory is given by them.
_LARGEST, _LARGEST_IMAGE = 2**24, 2**14


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
        return card
