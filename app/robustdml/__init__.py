"""Train, audit and use embeddings of images whose labels may be wrong.

==================  ====================================================================================
`commands`, `cli`   the command line
`settings`          from options and ``config.yaml`` to the configuration of a run; `options` declares settings
`config`, `train`   the settings of a run, and the run; `evaluation` computes retrieval metrics
`data`, `noise`     images and features with their labels; labels made wrong at random, for trying things out
`methods`           the losses with their settings; `loss_inputs` are the arguments of a loss
`filters`           keep samples of probably wrong labels out of the loss
`networks`, `run`   backbones; the parts of a run: its state, trials, log of samples
`trained`           the model file, `load_embedder`, embedding and exporting
`reports`           the report of a run
`audit`             finds wrong labels; `audit_report` writes the findings
==================  ====================================================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml.trained.embedder import load_embedder

__all__ = ["load_embedder"]


def __getattr__(name: str) -> Any:
    if name == "load_embedder":
        # When it is used: a command that needs no network is not to wait for one.
        from robustdml.trained.embedder import load_embedder

        return load_embedder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
