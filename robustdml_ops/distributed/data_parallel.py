"""``leave_out_of_ddp``: divided losses and filters in a model that is given to DistributedDataParallel as a whole."""

from typing import TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

Module = TypeVar("Module", bound=nn.Module)


def leave_out_of_ddp(model: Module) -> Module:
    """Have ``DistributedDataParallel`` leave alone what :func:`shard_classes` has divided, wherever in ``model`` it is.

    DDP copies parameters and buffers of the first process to all, and averages gradients: each process would have the
    first one's classes. Where network, loss and filter are one module, as in PyTorch Lightning, call this after
    ``shard_classes`` and before DDP is made.

    Parameters
    ----------
    model : Module
        What DDP is given.

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
    for prefix, part in model.named_modules():
        if getattr(getattr(part, "shards", None), "divided", False):
            names += [name for name, _ in (*part.named_parameters(prefix), *part.named_buffers(prefix))]
    if not names:
        raise ValueError(f"nothing in {type(model).__name__} is divided: call shard_classes on its parts first")
    already = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    # PyTorch has no public name for it; libraries that divide parameters themselves use this one.
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, sorted({*names, *already}))  # type: ignore[no-untyped-call]
    return model
