"""A trained network with its preprocessing: from paths, images or features to embeddings of length 1.

Its model file has weights and description as plain tensors, numbers and texts, which are safe to open.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from robustdml.arrays import Array, Pixels
from robustdml.data.images import decode, to_square
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import is_own_code, make_backbone
from robustdml.networks.models import Embedder, batch_size_for, unit_length
from robustdml.plain_files import read_plain, save_plain

# Of sizes in a model file, which may come from strangers: memory is given by them.
_LARGEST, _LARGEST_IMAGE, _MOST_NUMBERS = 2**24, 2**14, 2**26
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
        """Description of its input."""
        if not self.takes_images:
            return f"{self.input_shape[0]} features"
        colour = "colour" if self.channels == 3 else "grey"
        return f"{colour} images of {self.image_size}×{self.image_size} pixels"

    @property
    def preprocessing(self) -> dict[str, Any]:
        """Preprocessing of a sample; normalisation is part of the network."""
        kind = "images" if self.takes_images else "features"
        taken = {"input": kind, "shape": ["batch", *self.input_shape], "dtype": "float32"}
        if not self.takes_images:
            return taken
        return taken | {
            "order": ["frame", "upright", "depth", "transparency", "mode", "crop", "resize", "range"],
            "frame": "the first; JPEG may be unpacked at 1/2, 1/4 or 1/8 of its size, at least twice as large",
            "upright": "by the EXIF orientation",
            "depth": "grey of 16 bits: number >> 8, or number >> 4 where all are below 4096; 0 is black",
            "transparency": "over white",
            "mode": "RGB" if self.channels == 3 else "L",
            "crop": "central square as long as the shorter side, at half pixels where need be",
            "resize": "to the size, bicubic with a = -0.5, antialiased",
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
        if math.prod(card.input_shape) > _MOST_NUMBERS:
            raise ValueError(f"input_shape={card.input_shape}: a sample of more than {_MOST_NUMBERS:,} numbers")
        if not all(isinstance(name, str) for name in (card.backbone, *card.class_names)):
            raise TypeError("names that are no texts")
        if card.layer not in (LINEAR, IDENTITY):
            raise ValueError(f"layer={card.layer!r}: expected {LINEAR} or {IDENTITY}")
        return card


MODEL_FILE = "model.pt"
KIND = "robustdml_ops model"
FORMAT = 1


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


BATCH_SIZE = 64
AnyImage: TypeAlias = str | Path | Image.Image | Array


class TrainedEmbedder(nn.Module):
    """Backbone and embedding layer; embeddings have length 1."""

    def __init__(self, network: Embedder, card: ModelCard) -> None:
        super().__init__()
        self.network, self.card = network, card

    @property
    def embedding_size(self) -> int:
        """Size of an embedding, D."""
        return self.card.embedding_size

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        # Features that are kept as they are have no weights.
        return next(chain(self.parameters(), self.buffers()), torch.zeros(0)).device

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed images (B, channels, S, S), uint8 or float in [0, 1], or features (B, F): (B, D), rows of length 1."""
        if not isinstance(inputs, Tensor):
            raise UsageError(f"inputs: expected a tensor, got {type(inputs).__name__}; `embed` takes paths and images")
        if tuple(inputs.shape[1:]) != self.card.input_shape:
            expected = ", ".join(map(str, self.card.input_shape))
            raise UsageError(f"inputs of shape {tuple(inputs.shape)}: expected {self.card.takes}, (B, {expected})")
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        return unit_length(self.network(inputs))

    def prepare(self, images: Sequence[AnyImage]) -> Tensor:
        """Bring paths, PIL images and arrays, uint8 (H, W) or (H, W, 3), into the form that the network takes.

        That is float32 in [0, 1], (N, channels, S, S).
        """
        if not self.card.takes_images:
            raise UsageError(f"the model takes {self.card.takes} and no images: give a tensor of shape (N, F)")
        pixels = [self._pixels(image) for image in images]
        stacked = np.stack(pixels) if pixels else np.zeros((0, *self.card.input_shape), np.uint8)
        return torch.from_numpy(stacked).float() / 255

    @torch.no_grad()
    def embed(self, inputs: AnyImage | Sequence[AnyImage] | Tensor, batch_size: int = BATCH_SIZE) -> Tensor:
        """Embed paths, images, features or prepared batches without gradients, in eval mode: float32 (N, D), CPU.

        An array is a batch as the network takes it, features (N, F) or images (N, channels, S, S); or it is an image,
        uint8 (H, W) or (H, W, 3), or several of one size, (N, H, W, 3).
        """
        if isinstance(inputs, str | Path | Image.Image):
            inputs = [inputs]
        if isinstance(inputs, np.ndarray):
            if inputs.shape[1:] == self.card.input_shape or not self.card.takes_images:
                # A copy: a memory-mapped slice is read-only, which a tensor cannot be.
                inputs = torch.from_numpy(np.array(inputs))
            else:
                inputs = list(inputs) if inputs.ndim == 4 else [inputs]
        was_training = self.training
        size = min(batch_size, batch_size_for((len(inputs), *self.card.input_shape), self.device))
        self.eval()
        try:
            parts = []
            for start in range(0, len(inputs), size):
                batch = inputs[start : start + size]
                prepared = batch if isinstance(batch, Tensor) else self.prepare(batch)
                floating = prepared if prepared.dtype == torch.uint8 else prepared.float()
                parts.append(self(floating.to(self.device)).float().cpu())
        finally:
            self.train(was_training)
        embeddings = torch.cat(parts) if parts else torch.zeros(0, self.embedding_size)
        bad = (~embeddings.isfinite().all(dim=1)).nonzero().flatten()
        if len(bad):
            raise UsageError(f"{len(bad)} embeddings are NaN or infinite, the first is of input {int(bad[0])}")
        return embeddings

    def save(self, path: str | Path) -> None:
        """Write a model file, which `load_embedder` reads."""
        weights = {name: value.detach().cpu() for name, value in self.network.state_dict().items()}
        about = {"kind": KIND, "format": FORMAT, **self.card.as_dict(), "preprocessing": self.card.preprocessing}
        save_plain(Path(path), {**about, "state": weights})

    def _pixels(self, image: AnyImage) -> Pixels:
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.shape[2:] not in ((), (3,), (4,)) or image.ndim < 2 or not image.size:
                raise UsageError(f"image: an array of {image.dtype} {image.shape}; expected uint8 (H, W) or (H, W, 3)")
            image = Image.fromarray(image)
        if isinstance(image, Image.Image):
            return to_square(image, self.card.image_size, self.card.channels)
        if not isinstance(image, str | Path):
            raise UsageError(f"images: expected paths, PIL images or arrays, got {type(image).__name__}")
        pixels = decode(Path(image), self.card.image_size, self.card.channels)
        if isinstance(pixels, str):
            raise UsageError(f"{pixels}: the image cannot be read")
        return pixels


def load_embedder(path: str | Path, *, backbone: str = "", device: str | torch.device = "cpu") -> TrainedEmbedder:
    """Open what `robustdml train --out FOLDER` left: the trained network, with its preprocessing, in eval mode.

    ``embedder.embed(paths_or_images_or_arrays)`` gives embeddings of length 1; ``embedder(batch)`` takes prepared
    tensors. No model file, or one whose backbone cannot be made here, raises `UsageError`.

    Parameters
    ----------
    path : str or Path
        The folder of the run, or a model file. It is opened with ``weights_only=True``: nothing in it is run.
    backbone : str
        Needed where the network was trained with a backbone of your own, ``package.module:factory``: naming it again
        says that this code may be imported. Otherwise empty.
    device : str or torch.device
        Where the weights go.

    Examples
    --------
    >>> embedder = load_embedder("out/run")  # doctest: +SKIP
    >>> embedder.embed(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
    torch.Size([2, 64])
    """
    card, state = read_model(Path(path).expanduser())
    own = is_own_code(card.backbone)
    if own and not backbone:
        raise UsageError(
            f"{path} was trained with the backbone {card.backbone}, code that is not in the file; if it is yours, say "
            f"so by naming it (backbone {card.backbone})"
        )
    if backbone and not own and backbone != card.backbone:
        raise UsageError(f"backbone {backbone!r}: {path} was trained with {card.backbone}, and needs none named")
    # The weights that it starts with are replaced; a caller's random numbers go on as if none had been drawn.
    with torch.random.fork_rng(devices=[]):
        made = make_backbone(backbone if own else card.backbone, card.channels, card.image_size)
        network = Embedder(made, card.num_features, card.embedding_size if card.layer == LINEAR else None)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        detail = " ".join(str(error).splitlines()[1:2]).strip()
        raise UsageError(f"{path}: its weights do not fit backbone {backbone or card.backbone}; {detail}") from error
    return TrainedEmbedder(network, card).to(device).eval()
