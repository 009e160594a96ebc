"""Networks of the library timm, by name, with weights that are on this machine: nothing is downloaded here.

timm is no dependency of this package: it brings torchvision, which must be the one built for the PyTorch at hand.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustdml.errors import UsageError, quiet, reason_of
from robustdml.networks.backbones.photographs import PhotoBackbone

PREFIX = "timm:"
HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def timm_image_size(name: str) -> int:
    """Side of the images that a network was trained for."""
    return int(_settings(name).get("input_size", (224,))[-1])


def make_timm(name: str) -> PhotoBackbone:
    """Make a network as it starts, untrained."""
    return _with_normalisation(_create(name), augment=True)


def load_timm(name: str, *, weights: Path | None = None, augment: bool = True) -> PhotoBackbone:
    """Make a network with trained weights."""
    path = weights or _local_weights(name)
    network, again = (_load(name, path, seed) for seed in (0, 1))
    # timm passes over what a file does not have, and starts it at random: then two loads differ.
    values, others = network.state_dict(), again.state_dict()
    missing = [key for key, value in values.items() if not torch.equal(value, others[key])]
    if missing:
        raise UsageError(
            f"backbone {name}: {path} is not a file of its weights; {len(missing)} of {len(values)} tensors are not in "
            f"it, the first is {missing[0]}"
        )
    return _with_normalisation(network, augment)


def _load(name: str, path: Path, seed: int) -> nn.Module:
    """Let timm read the file: it leaves the classifier out, and renames what older files name otherwise."""
    with torch.random.fork_rng(devices=[]), quiet("timm"):
        torch.manual_seed(seed)
        try:
            return _create(name, pretrained=True, pretrained_cfg_overlay={"file": str(path)})
        except UsageError as error:
            raise UsageError(f"{error}; its weights are from {path}") from error
        except Exception as error:  # Of a file that holds no weights: nearly anything.
            raise UsageError(f"backbone {name}: {path} is not a file of its weights ({reason_of(error)})") from error


def _create(name: str, **arguments: Any) -> nn.Module:
    # Without a classifier the output is the pooled features.
    network: nn.Module = _ask("create_model", name, num_classes=0, **arguments)
    return network


def _settings(name: str) -> dict[str, Any]:
    """Image size and origin of the weights of a timm network, without making it."""
    found = _ask("get_pretrained_cfg", name)
    # None of a network that nobody has trained.
    return {} if found is None else dict(found.to_dict())


def _ask(function: str, name: str, **arguments: Any) -> Any:
    """Call a function of the library, which has a network of this name."""
    if find_spec("timm") is None:
        raise UsageError(
            f"backbone {name}: timm is not installed; `pip install timm` brings it, with the torchvision that goes "
            "with your PyTorch"
        )
    timm, architecture = import_module("timm"), name.removeprefix(PREFIX)
    if not timm.is_model(architecture):
        like = timm.list_models(f"{architecture}*") or timm.list_models(f"*{architecture}*") if architecture else []
        hint = f"; it has {', '.join(like[:5])}" if like else "; timm.list_models() lists them"
        raise UsageError(f"backbone {name}: timm has no network {architecture!r}{hint}")
    try:
        return getattr(timm, function)(architecture, **arguments)
    except RuntimeError as error:
        raise UsageError(f"backbone {name}: timm cannot make it ({reason_of(error)})") from error


def _with_normalisation(network: nn.Module, augment: bool) -> PhotoBackbone:
    config = import_module("timm.data").resolve_model_data_config(network)
    return PhotoBackbone(network, config["mean"], config["std"], augment)


def _local_weights(name: str) -> Path:
    """Where timm has the weights: Hugging Face's cache, or that of `torch.hub`."""
    settings = _settings(name)
    hub_id, url = settings.get("hf_hub_id"), settings.get("url")
    if hub_id and find_spec("huggingface_hub") is not None:
        find = import_module("huggingface_hub").try_to_load_from_cache
        files = [settings["hf_hub_filename"]] if settings.get("hf_hub_filename") else HUB_FILES
        for file in files:
            # Neither a path nor None where the hub is known to have no such file.
            if isinstance(found := find(hub_id, file), str):
                return Path(found)
    if url:
        downloaded = Path(torch.hub.get_dir()) / "checkpoints" / str(url).rpartition("/")[2]
        if downloaded.is_file():
            return downloaded
    architecture = name.removeprefix(PREFIX)
    raise UsageError(
        f"backbone {name}: its weights ({hub_id or url or 'timm has none'}) are not on this machine, and are not "
        f"downloaded here. Fetch them once, `python -c \"import timm; timm.create_model('{architecture}', "
        'pretrained=True)"`, or give a file (backbone weights)'
    )
