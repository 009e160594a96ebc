"""``shard_classes``: a loss or filter whose classes are divided among the processes of a mesh."""

import warnings
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor, empty

from robustdml_ops.distributed.class_shards import ClassShards
from robustdml_ops.distributed.processes import Processes
from robustdml_ops.engine.proxy_update import owner_of
from robustdml_ops.engine.shards import settings_of

Module = TypeVar("Module", bound=nn.Module)

# What the processes do with the gradients of the network below, and what the embeddings' are multiplied by for it.
BACKBONE_GRADIENTS = ("averaged", "summed")


def shard_classes(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    *,
    backbone_gradients: str = "averaged",
    timeout: timedelta = timedelta(minutes=5),
) -> Module:
    """Divide the classes of a loss or filter among processes, in place.

    Each process then gives its own batch, of any size, and gets the loss of the batch of all, and its optimiser has
    a part of the proxies. Labels stay numbers of all classes.

    Parameters
    ----------
    module : Module
        A loss or filter of this package, on the device that it is to be used on, the same on all processes. Its
        parameters are those of the first process. Proxies on the "meta" device are made part by part: of more classes
        than one device holds.
    device_mesh : DeviceMesh, optional
        Of one dimension. None: all processes. Without ``torch.distributed``, or where it has not been initialised,
        ``module`` is given back as it is.
    backbone_gradients : {"averaged", "summed"}
        What becomes of the gradients of the network below. DDP and FSDP average them over the processes, and the
        gradients of embeddings and sample weights are multiplied by their number for that; "summed" leaves them as they
        are. Gradients of proxies and margins are complete in any case: keep the loss out of DDP and FSDP.
    timeout : timedelta
        How long a process waits for another one. On a GPU the process group of the mesh has its own.

    Returns
    -------
    Module
        ``module``. Parameters with something for each class are ``DTensor``s, divided along it; others are replicated.
        ``state_dict`` has DTensors, too, which ``torch.distributed.checkpoint`` loads on any number of processes;
        ``load_state_dict`` takes that of one process as well.

    Raises
    ------
    ValueError, TypeError
        A mesh of two dimensions, fewer classes than processes, a module that is sharded already, or that has what
        can't be: no classes, a reducer, regulariser or distance of pytorch-metric-learning.
    ShardError
        Settings differ between processes; in a step, a process has died or raised. It names the rank.

    Notes
    -----
    Each process has ⌈C/W⌉ classes, the last ones fewer or none. ``reduction="none"`` gives the losses of own samples,
    and in the Proxy-Anchor family the terms of own classes; what is backpropagated is the sum of what the processes
    call ``backward`` on. A step sends what docs/large-classes.md counts; nothing of size C is ever sent.

    Examples
    --------
    >>> from robustdml_ops.distributed import shard_classes
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> loss_function = shard_classes(ProxyAnchorLoss(1000, 64))  # one process: as it was
    """
    if backbone_gradients not in BACKBONE_GRADIENTS:
        raise ValueError(f"backbone_gradients={backbone_gradients!r}: expected one of {', '.join(BACKBONE_GRADIENTS)}")
    parts = _parts(module)
    if device_mesh is None:
        if not (dist.is_available() and dist.is_initialized()):
            return module
        device_mesh = init_device_mesh(_device(module).type, (dist.get_world_size(),))
    if device_mesh.ndim != 1:
        raise ValueError(
            f"device_mesh has {device_mesh.ndim} dimensions {device_mesh.mesh_dim_names or ''}, and classes are "
            "divided along one: give one of them, as mesh['name']"
        )
    for part in parts:
        if getattr(part, "num_classes", device_mesh.size()) < device_mesh.size():
            raise ValueError(
                f"num_classes={part.num_classes} is less than the {device_mesh.size()} processes of the mesh: give a "
                "mesh of fewer, or leave the loss as it is on each"
            )
    processes = Processes(device_mesh, timeout)
    traits = {f"{type(part).__name__}.{name}": value for part in parts for name, value in settings_of(part).items()}
    traits |= {name: f"{tuple(value.shape)} of {value.dtype}" for name, value in module.named_parameters()}
    draws = {type(part).__name__: part.negatives for part in parts if getattr(part, "negatives", None) is not None}
    traits |= {f"{name}.negatives.state": negatives.state.tolist() for name, negatives in draws.items()}
    processes.agree(dict, traits | {"backbone_gradients": backbone_gradients})
    factor = float(device_mesh.size()) if backbone_gradients == "averaged" else 1.0
    for part in parts:
        _divide(part, ClassShards(getattr(part, "num_classes", 0), device_mesh, processes, factor))
    return module


def _device(module: nn.Module) -> torch.device:
    """Where the module is; one on the meta device goes to the accelerator, if there is one."""
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    if device.type == "meta":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return device


def _parts(module: nn.Module) -> list[Any]:
    """Those within ``module`` that have classes, all checked."""
    parts: list[Any] = [part for part in module.modules() if hasattr(part, "class_dimensions")]
    if module not in parts:
        raise TypeError(f"{type(module).__name__} has no classes to divide: take a loss or filter of this package")
    for part in parts:
        part.class_dimensions()  # some raise for what can't be divided
        if any(owner_of(parameter) is not None for parameter in part.parameters(recurse=False)):
            raise ValueError(
                f"an optimiser is bound to the parameters of {type(part).__name__}, which sharding replaces: shard the "
                "loss first, and make its optimiser then"
            )
        if part.shards.divided:
            raise ValueError(f"{type(part).__name__} is sharded already: make a new one, and shard it once")
        names = ["embedding_regularizer", "weight_regularizer"]
        if hasattr(part, "is_fused") and not part.is_fused():
            names += ["reducer", "distance"]
        given = {name: getattr(part, name, None) for name in names}
        if any(value is not None for value in given.values()):
            told = ", ".join(f"{name}={type(value).__name__}" for name, value in given.items() if value is not None)
            raise ValueError(
                f"{told} of {type(part).__name__}: what pytorch-metric-learning computes takes all samples and classes "
                "at once, and they are to be divided. Leave out what is not the default"
            )
    return parts


def _divide(part: Any, shards: ClassShards) -> None:
    """Leave the classes of ``shards`` in one module."""
    dimensions = part.class_dimensions()
    for name, parameter in list(part.named_parameters(recurse=False)):
        value = part.by_class(name, parameter) if hasattr(part, "by_class") else parameter
        dimension = dimensions.get(name)
        placement: Placement = Replicate() if dimension is None else Shard(dimension)
        if parameter.is_meta:
            divided = _made(part, name, value, shards, placement)
        else:
            divided = distribute_tensor(value.detach().contiguous(), shards.mesh, [placement])
        setattr(part, name, nn.Parameter(divided, requires_grad=parameter.requires_grad))
    for name, buffer in list(part.named_buffers(recurse=False)):
        if name in dimensions:
            setattr(part, name, buffer[shards.first : shards.last].clone())
        elif name in _slot_buffers(part):
            setattr(part, name, _slots_here(buffer, shards))
    part.shards = shards
    part.register_state_dict_post_hook(_give_shards)
    part.register_load_state_dict_pre_hook(_take_whole)


def _slot_buffers(part: Any) -> tuple[str, ...]:
    """Names of what has something for each slot of a queue."""
    names: tuple[str, ...] = part.slot_buffers() if hasattr(part, "slot_buffers") else ()
    return names


def _slots_here(values: Tensor, shards: ClassShards) -> DTensor:
    """Of something for each slot, that of the slots of this process."""
    first, last = shards.shard_of(len(values))
    return shards.as_shards(values[first:last].to(shards.mesh.device_type, copy=True), len(values))


def _made(part: Any, name: str, value: Tensor, shards: ClassShards, placement: Placement) -> Tensor:
    """A parameter that is nowhere yet, filled as a new one is."""
    made = empty(*value.shape, dtype=value.dtype, device_mesh=shards.mesh, placements=[placement])
    if name == "margins":
        return made.fill_(part.margin)
    seed = int(torch.randint(2**62, ()))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        if made.device.type == "cpu":
            # A GPU's DTensors draw from different places of one sequence, those of the CPU would draw the same.
            warnings.filterwarnings("ignore", "DTensor random operators may not have complete support")
            torch.manual_seed(seed + shards.processes.rank)
        part.weight_init_func(made)
    return made


def _take_whole(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let ``load_state_dict`` take tensors of all classes, of which each process keeps its part."""
    for name in module.class_dimensions():
        saved = state_dict.get(prefix + name)
        if name in module._buffers and saved is not None:
            state_dict[prefix + name] = _here(module, name, saved)
    for name in _slot_buffers(module):
        saved, held = state_dict.get(prefix + name), getattr(module, name)
        if saved is None or isinstance(saved, DTensor):
            continue
        if saved.shape == held.shape:  # else PyTorch names both shapes
            saved = _slots_here(saved, module.shards)
        state_dict[prefix + name] = saved
    for name, parameter in module.named_parameters(recurse=False):
        saved = state_dict.get(prefix + name)
        if saved is None or isinstance(saved, DTensor):
            continue
        if hasattr(module, "by_class"):
            saved = module.by_class(name, saved)
        if saved.shape == parameter.shape:  # else PyTorch names both shapes
            mesh, placements = parameter.device_mesh, parameter.placements
            saved = distribute_tensor(saved.to(mesh.device_type), mesh, placements, src_data_rank=None)
        state_dict[prefix + name] = saved


def _here(module: Any, name: str, saved: Tensor) -> Tensor:
    """Own part of a buffer that was saved: of a DTensor, or of something for all classes."""
    if isinstance(saved, DTensor):
        return saved.to_local()
    buffer, shards = getattr(module, name), module.shards
    # The row past the end is that of PRISM's rings in older files.
    if saved.shape[1:] != buffer.shape[1:] or len(saved) not in (shards.num_classes, shards.num_classes + 1):
        raise ValueError(
            f"{type(module).__name__}.{name} was saved with shape {tuple(saved.shape)}, and there are "
            f"{shards.num_classes} classes of {tuple(buffer.shape[1:])}: load a state of the same sizes"
        )
    return saved[shards.first : shards.last]


def _give_shards(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Show buffers that have something for each class as the parts that they are."""
    for name in module.class_dimensions():
        if name in module._buffers and prefix + name in state_dict:
            state_dict[prefix + name] = module.shards.as_shards(state_dict[prefix + name])
