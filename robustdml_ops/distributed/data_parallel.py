"""``leave_out_of_ddp``: sharded losses and filters inside a model that DistributedDataParallel wraps."""

from typing import TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

Module = TypeVar("Module", bound=nn.Module)


def leave_out_of_ddp(model: Module) -> Module:
    """Exclude losses and filters that :func:`shard_classes` has sharded from ``DistributedDataParallel``.

    DDP copies parameters and buffers of the first process to all, and averages gradients: each process would have the
    first one's classes. Where network, loss and filter are one module, as in PyTorch Lightning, call this after
    ``shard_classes`` and before DDP is made.

    Parameters
    ----------
    model : Module
        The module that DDP will wrap.

    Returns
    -------
    Module
        ``model``.

    Raises
    ------
    ValueError
        Nothing in it is divided.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.distributed import leave_out_of_ddp
    >>> leave_out_of_ddp(torch.nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    ValueError: nothing in Linear is divided: call shard_classes on its parts first
    """
    names: list[str] = []
    for prefix, module in model.named_modules():
        if getattr(getattr(module, "shards", None), "divided", False):
            names += [name for name, _ in (*module.named_parameters(prefix), *module.named_buffers(prefix))]
    if not names:
        raise ValueError(f"nothing in {type(model).__name__} is divided: call shard_classes on its parts first")
    already = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    # PyTorch has no public name for it; libraries that divide parameters themselves use this one.
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, sorted({*names, *already}))  # type: ignore[no-untyped-call]
    return model
