"""Data, noise, training, evaluation and the command line: what one needs to use the losses on real images.

==================  ====================================================================================
`config`, `train`   the settings of a run, and the run; `evaluation` scores what comes out
`data`, `noise`     images, features, and wrong labels for them
`settings`          what a person may set of a run: options, ``config.yaml``, and the configuration made of them
`methods`           the losses that one trains with, each with its settings; `loss_inputs` what they are fed
`filters`           who is kept out of the loss
`networks`, `run`   backbones; the parts of a run: its state, checkpoints, log of samples
`trained`           what a run leaves: the model file, `load_embedder`, embedding and exporting with it
`reports`           the report of a run
`commands`, `cli`   the command line
==================  ====================================================================================
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml.trained.embedder import load_embedder

__all__ = ["load_embedder"]

_EXTRAS = {
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "pytorch_metric_learning": "pytorch-metric-learning",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}

_missing = [package for module, package in _EXTRAS.items() if find_spec(module) is None]
if _missing:
    raise ImportError(f"robustdml needs {', '.join(_missing)}: install with `pip install robustdml`")


def __getattr__(name: str) -> Any:
    if name == "load_embedder":
        # When it is used: a command that needs no network is not to wait for one.
        from robustdml.trained.embedder import load_embedder

        return load_embedder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
