"""``shard_classes`` divides the classes of a loss or filter among processes; ``leave_out_of_ddp`` hides it from DDP."""

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, RegistryItem
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from robustdml_ops.distributed.class_shards import ClassShards
from robustdml_ops.distributed.processes import Processes
from robustdml_ops.engine.proxy_update import owner_of
from robustdml_ops.engine.shards import (
    ShownSettings,
    check_held,
    digest,
    is_sharded,
    of_shards,
    settings_of,
    shard_loaded,
)
from robustdml_ops.engine.validation import check_choice

Module = TypeVar("Module", bound=nn.Module)


def shard_classes(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    *,
    backbone_gradients: str = "averaged",
    timeout: timedelta = timedelta(minutes=5),
) -> Module:
    """Divide the classes of a loss or filter among processes, in place.

    Each process then gives its own batch, of any size, and gets the loss of the joint batch. Its optimiser has one
    shard of the proxies. Labels stay numbers of all classes.

    Parameters
    ----------
    module : Module
        A loss or filter of this package, on the device where it will be used, the same on all processes. Its parameters
        are those of the first process; buffers, such as a filter's bank, must be equal: load a state on all processes.
        Proxies on the "meta" device are made shard by shard, so that no device has to hold them all.
    device_mesh : DeviceMesh, optional
        Of one dimension. None: all processes. Without ``torch.distributed``, or where it has not been initialised,
        ``module`` is given back as it is.
    backbone_gradients : {"averaged", "summed"}
        How the gradients of the network are reduced. DDP and FSDP average them over W processes, so "averaged"
        multiplies the gradients of embeddings and sample weights by W; "summed" does not. Gradients of proxies and
        margins are complete in either case: keep the loss out of DDP and FSDP.
    timeout : timedelta
        How long a process waits for another one. On a GPU the process group of the mesh has its own.

    Returns
    -------
    Module
        ``module``. Parameters with entries for each class are ``DTensor``s, sharded by class; others are replicated.
        ``state_dict`` has DTensors, too, which ``torch.distributed.checkpoint`` loads on any number of processes;
        ``load_state_dict`` also takes the ``state_dict`` of one process.

    Raises
    ------
    ValueError, TypeError
        A mesh of two dimensions; fewer classes than processes; a module that is sharded already, also by
        ``fully_shard``, has no classes, or has a reducer, regulariser or distance of pytorch-metric-learning.
    ShardError
        Settings or buffers differ between processes; in a step, a process has died or raised. It names the rank.

    Notes
    -----
    Each process has ⌈C/W⌉ classes, the last ones fewer or none. ``reduction="none"`` gives the losses of own samples,
    and in the Proxy-Anchor family the terms of own classes; gradients are those of the sum over all processes.
    docs/large-classes.md counts the bytes that a step sends; nothing of size C is ever sent.

    Examples
    --------
    >>> from robustdml_ops.distributed import shard_classes
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> loss_function = shard_classes(ProxyAnchorLoss(1000, 64))  # one process: as it was
    """
    check_choice(("averaged", "summed"), backbone_gradients=backbone_gradients)
    items = _items(module)
    if device_mesh is None:
        if not (dist.is_available() and dist.is_initialized()):
            return module
        device_mesh = init_device_mesh(_device(module).type, (dist.get_world_size(),))
    if device_mesh.ndim != 1:
        raise ValueError(
            f"device_mesh has {device_mesh.ndim} dimensions {device_mesh.mesh_dim_names or ''}, and classes are "
            "divided along one: give one of them, as mesh['name']"
        )
    for item in items:
        if getattr(item, "num_classes", device_mesh.size()) < device_mesh.size():
            raise ValueError(
                f"num_classes={item.num_classes} is less than the {device_mesh.size()} processes of the mesh: give a "
                "mesh of fewer, or leave the loss as it is on each"
            )
    for part in module.modules():
        _give_values(part, device_mesh.device_type)
    processes = Processes(device_mesh, timeout)
    parts = [part for part in module.modules() if isinstance(part, ShownSettings)]  # thresholds of filters, too
    traits = {f"{type(part).__name__}.{name}": value for part in parts for name, value in settings_of(part).items()}
    traits |= {name: f"{tuple(value.shape)} of {value.dtype}" for name, value in module.named_parameters()}
    traits |= {name: _described(value) for name, value in module.named_buffers()}
    processes.agree(dict, traits | {"backbone_gradients": backbone_gradients})
    factor = float(device_mesh.size()) if backbone_gradients == "averaged" else 1.0
    for item in items:
        _divide(item, ClassShards(getattr(item, "num_classes", 0), device_mesh, processes, factor))
    return module


def _device(module: nn.Module) -> torch.device:
    """Where the module is; one on the meta device goes to the accelerator, if there is one."""
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    if device.type == "meta":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return device


def _give_values(module: Any, device: str) -> None:
    """Fill buffers that were made on the meta device and begin with other values than 0."""
    with torch.device(device):
        values: dict[str, torch.Tensor] = getattr(module, "initial_buffers", dict)()
    for name, value in values.items():
        if getattr(module, name).is_meta:
            setattr(module, name, value)


def _described(buffer: torch.Tensor) -> str:
    """Shape, type and values of a buffer, or a checksum of many values."""
    values = "values" if buffer.is_meta else buffer.tolist() if buffer.numel() < 3 else f"checksum {digest(buffer)}"
    return f"{tuple(buffer.shape)} of {buffer.dtype}: {values}"


def _items(module: nn.Module) -> list[Any]:
    """The losses and filters within ``module`` that can be sharded, checked."""
    items: list[Any] = [item for item in module.modules() if hasattr(item, "class_dimensions")]
    if module not in items:
        raise TypeError(f"{type(module).__name__} has no classes to divide: take a loss or filter of this package")
    for item in items:
        item.class_dimensions()  # raises for settings that can't be sharded
        if any(owner_of(parameter) is not None for parameter in item.parameters(recurse=False)):
            raise ValueError(
                f"an optimiser is bound to the parameters of {type(item).__name__}, which sharding replaces: shard the "
                "loss first, and make its optimiser then"
            )
        if item.shards.divided:
            raise ValueError(f"{type(item).__name__} is sharded already: make a new one, and shard it once")
        if any(is_sharded(parameter) for parameter in item.parameters(recurse=False)):
            raise ValueError(
                f"the parameters of {type(item).__name__} are DTensors already, as fully_shard makes them: call "
                "shard_classes on the loss first, and fully_shard passes over it"
            )
        check_held(item)
        names = ["embedding_regularizer", "weight_regularizer"]
        if hasattr(item, "is_fused") and not item.is_fused():
            names += ["reducer", "distance"]
        given = {name: value for name in names if (value := getattr(item, name, None)) is not None}
        if given:
            named = ", ".join(f"{name}={type(value).__name__}" for name, value in given.items())
            raise ValueError(
                f"{named} of {type(item).__name__}: pytorch-metric-learning's code needs all samples and classes on "
                "one process. Leave these arguments out"
            )
    return items


def _divide(item: Any, shards: ClassShards) -> None:
    """Replace parameters and buffers of one loss or filter by this process's shards."""
    dimensions = item.class_dimensions()
    for name, parameter in list(item.named_parameters(recurse=False)):
        value = item.by_class(name, parameter) if hasattr(item, "by_class") else parameter
        dimension = dimensions.get(name)
        placement: Placement = Replicate() if dimension is None else Shard(dimension)
        if parameter.is_meta:
            divided = shards.new_parameter(item, name, value.shape, placement)
        else:
            value = value.detach().contiguous()
            local = distribute_tensor(value, shards.mesh, [placement]).to_local()  # of the first process's values
            divided = of_shards(local, value, shards.mesh, placement)
        setattr(item, name, nn.Parameter(divided, requires_grad=parameter.requires_grad))
    for name, buffer in list(item.named_buffers(recurse=False)):
        if name in dimensions:
            local = buffer[shards.first : shards.last]
            made = local.new_zeros(local.shape, device=shards.mesh.device_type) if local.is_meta else local.clone()
            setattr(item, name, made)
        elif name in getattr(item, "slot_buffers", ()):
            first, last = shards.shard_bounds(len(buffer))
            local = buffer[first:last].to(shards.mesh.device_type, copy=True)
            setattr(item, name, shards.to_dtensor(local, len(buffer)))
    item.shards = shards
    # ``fully_shard`` would divide the shards again, and passes over replicated modules; this mark has no public name.
    item.__dict__.setdefault(REGISTRY_KEY, {})["replicate"] = RegistryItem()
    item.register_state_dict_post_hook(_give_shards)
    item.register_load_state_dict_pre_hook(_take_whole)


def _take_whole(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let ``load_state_dict`` take tensors of all classes; each process keeps its shard."""
    shards = module.shards
    for name in module.class_dimensions():
        saved, held = state_dict.get(prefix + name), getattr(module, name)
        if name not in module._buffers or saved is None:
            continue
        if isinstance(saved, DTensor):
            saved = saved.to_local()
        elif saved.shape == (shards.num_classes, *held.shape[1:]):
            saved = saved[shards.first : shards.last].clone()
        else:
            raise ValueError(
                f"{type(module).__name__}.{name} was saved with shape {tuple(saved.shape)}, and there are "
                f"{shards.num_classes} classes of {tuple(held.shape[1:])}: load a state of the same sizes"
            )
        state_dict[prefix + name] = saved
    parameters = [name for name, _ in module.named_parameters(recurse=False)]
    for name in (*parameters, *getattr(module, "slot_buffers", ())):
        saved, held = state_dict.get(prefix + name), getattr(module, name)
        if isinstance(saved, DTensor) and saved.shape != held.shape:  # of one process, divided by torch
            saved = saved.full_tensor()
        if saved is None or isinstance(saved, DTensor):
            continue
        if hasattr(module, "by_class"):
            saved = module.by_class(name, saved)
        if saved.shape == held.shape:  # else PyTorch names both shapes
            saved = shard_loaded(held, saved)
        state_dict[prefix + name] = saved


def _give_shards(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Save buffers with an entry for each class as DTensors."""
    for name in module.class_dimensions():
        if name in module._buffers and prefix + name in state_dict:
            state_dict[prefix + name] = module.shards.to_dtensor(state_dict[prefix + name])


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
