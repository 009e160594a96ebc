"""``grow_classes``: a trained loss or filter, and its optimiser, get new classes, or lose some."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.labels import ABSENT, check_labels
from robustdml_ops.engine.proxy_update import owner_of
from robustdml_ops.engine.shards import OneProcess, check_held, digest, local_of, shard_like
from robustdml_ops.engine.sums import add_rows
from robustdml_ops.engine.validation import check_finite_embeddings, check_matrix, check_range
from robustdml_ops.optim.optimizer import ProxyOptimizer

Rows = Callable[[Tensor, Any], Tensor]


@torch.no_grad()
def grow_classes(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    classes: int | Tensor,
    *,
    init: Tensor | tuple[Tensor, Tensor] | None = None,
) -> None:
    """Give a trained loss or filter other classes, in place, between two steps.

    Proxies, margins and moments of the optimiser, running sums and thresholds of a filter follow their classes; rows of
    a bank are renumbered. Sampling of negatives goes on with its state. A new class starts as in a new loss.

    Parameters
    ----------
    module : nn.Module
        A loss or filter of this package, whether or not its classes are sharded; its parameters are replaced.
    optimizer : torch.optim.Optimizer, optional
        The optimiser of its parameters, of torch or of this package.
    classes : int or Tensor
        The new number of classes: further classes come last, or the last ones go. Or (C',) int64, the old class of each
        new one, −1 for a class without one; old classes that are not named are dropped.
    init : Tensor or (embeddings, labels), optional
        Proxies of the K new classes, (K, D), or (K, H, D) with H centres a class. Or (N, D) embeddings with (N,) int64
        labels, new numbers of new classes: each starts at the mean of its embeddings. Equal on all processes. None:
        drawn as in a new loss.

    Raises
    ------
    ValueError, TypeError, IndexError, RuntimeError
        ``classes`` or ``init`` of another shape or type, an old class that does not exist or is named twice, fewer
        classes than processes, none at all, an optimiser that does not have the proxies, or one before its ``step()``.
        Nothing has changed then.
    ShardError
        The arguments differ between processes.

    Notes
    -----
    On shards each process reads the rows of others in chunks of 64 MiB. A checkpoint of C classes is loaded into a loss
    of C classes, which then grows. Other copies of the parameters, such as averages of weights, have to be made anew.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> loss_function = ProxyAnchorLoss(num_classes=10, embedding_size=4)
    >>> optimizer = torch.optim.AdamW(loss_function.parameters())
    >>> grow_classes(loss_function, optimizer, 12, init=torch.ones(2, 4))
    >>> loss_function.proxies.shape, loss_function.proxies[11]
    (torch.Size([12, 4]), tensor([1., 1., 1., 1.], grad_fn=<SelectBackward0>))
    >>> first_embeddings = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    >>> grow_classes(loss_function, optimizer, 13, init=(first_embeddings, torch.tensor([12, 12])))
    >>> loss_function.proxies[12]
    tensor([0.5000, 0.5000, 0.0000, 0.0000], grad_fn=<SelectBackward0>)
    """
    items: list[Any] = [item for item in module.modules() if hasattr(item, "class_dimensions")]
    owners = [item for item in items if item.class_dimensions()]
    if not owners:
        raise TypeError(f"{type(module).__name__} has no classes: take a loss or filter of this package")
    for item in owners:
        check_held(item)
    shards: OneProcess = owners[0].shards
    shards.agree(dict, {"classes of grow_classes": digest(classes), "init of grow_classes": digest(init)})
    origin = _origin(classes, owners[0].num_classes)
    shards.for_classes(len(origin))  # raises for fewer classes than processes
    matrices = [item for item in owners if hasattr(item, "matrix_name")]
    if isinstance(init, tuple):
        init = _means(*init, origin, matrices)
    _check_init(init, matrices, int((origin < 0).sum()))
    _check_optimizer(optimizer, owners)
    for item in owners:
        _regroup(item, origin, init if item in matrices else None, optimizer)
    for item in items:
        if hasattr(item, "num_classes"):
            item.num_classes = len(origin)
        if getattr(item, "first_steps", None) is not None and not item.first_steps.over:
            item.first_steps = type(item.first_steps)()


def _origin(classes: int | Tensor, number: int) -> Tensor:
    """The old class of each new one, (C',) int64; −1: none."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        if classes < 1:
            raise ValueError(f"classes={classes}: at least one has to remain")
        new = torch.arange(classes, device="cpu")
        return torch.where(new < number, new, -1)
    if not isinstance(classes, Tensor) or classes.dtype != torch.int64 or classes.dim() != 1 or not len(classes):
        given = f"{classes.dtype} {tuple(classes.shape)}" if isinstance(classes, Tensor) else repr(classes)
        raise TypeError(f"classes must be a number, or the old class of each new one as (C',) int64, got {given}")
    origin = classes.detach().cpu()
    if (wrong := (origin < -1) | (origin >= number)).any():
        place = int(wrong.nonzero()[0])
        raise IndexError(f"classes[{place}] = {int(origin[place])} is outside 0 … {number - 1}; −1 is a new class")
    old, counts = torch.unique(origin[origin >= 0], return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"classes names class {int(old[counts > 1][0])} more than once: a class has one successor")
    return origin


def _means(embeddings: Tensor, labels: Tensor, origin: Tensor, matrices: list[Any]) -> Tensor:
    """Mean embedding (K, D) of each new class."""
    if any(getattr(item, "centers", None) is not None for item in matrices):
        raise ValueError("centres of a class that start alike stay alike: give their proxies (K, H, D) as init")
    embeddings = check_matrix("init[0]", embeddings)
    check_finite_embeddings(embeddings, "init[0]")
    labels = check_labels(labels, embeddings, "init[1]", "init[0]")
    check_range(labels, len(origin), "label", "init[1]", "the new number of classes")
    new = (origin < 0).to(labels.device)
    if not new[labels].all():
        old = int(labels[~new[labels]][0])
        raise ValueError(f"init has embeddings of class {old}, which is not new: leave them out")
    counts = torch.bincount(labels, minlength=len(origin))[new]
    if not counts.all():
        missing = int(new.nonzero().flatten()[counts == 0][0])
        raise ValueError(f"init has no embedding of the new class {missing}: every new class needs one")
    values = embeddings.to(compute_dtype(embeddings, embeddings))
    sums = add_rows(values.new_zeros(len(counts), values.shape[1]), (new.cumsum(0) - 1)[labels], values)
    return sums / counts[:, None]


def _check_init(init: Tensor | None, matrices: list[Any], new: int) -> None:
    if init is None:
        return
    for item in matrices:
        centers = getattr(item, "centers", None)
        shape = (new, *(() if centers is None else (centers,)), item.embedding_size)
        if tuple(init.shape) != shape:
            raise ValueError(f"init has shape {tuple(init.shape)}, and the {new} new classes need {shape}")
    if not matrices:
        raise ValueError("init is given, and there are no proxies: leave it out")
    check_finite_embeddings(init.flatten(0, -2), "init")


def _check_optimizer(optimizer: torch.optim.Optimizer | None, owners: list[Any]) -> None:
    names = [(item, name) for item in owners for name in item.class_dimensions() if name in item._parameters]
    parameters = [getattr(item, name) for item, name in names]
    bound: list[Any] = [owner_of(parameter) for parameter in parameters]
    steps = [step for step in bound if step is not None and step.optimizer() is not None]
    if any(step.optimizer() is not optimizer for step in steps):
        owner = type(steps[0].optimizer()).__name__
        raise ValueError(f"the proxies belong to {owner}: give it as optimizer, so that it follows them")
    if any(step.swept for step in steps):
        raise RuntimeError("the proxies have been updated and step() has not come yet: let classes grow after step()")
    if optimizer is None:
        return
    for (item, name), parameter in zip(names, parameters, strict=True):
        counts = (item.num_classes, item.num_classes * (getattr(item, "centers", None) or 1))
        state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if isinstance(value, Tensor)}
        for key, value in state.items():
            if value.dim() and value.shape != parameter.shape and len(value) not in counts:
                raise ValueError(
                    f"{key} of {type(optimizer).__name__}, {tuple(value.shape)}, has no entries for classes of {name}: "
                    "give None, and make the optimiser anew"
                )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if parameters and not any(id(parameter) in held for parameter in parameters):
        raise ValueError(
            f"{type(optimizer).__name__} has no parameter of the loss with entries for each class: give the optimiser "
            "of its proxies"
        )


def _regroup(item: Any, origin: Tensor, init: Tensor | None, optimizer: torch.optim.Optimizer | None) -> None:
    """Give one loss or filter its new classes."""
    old_shards, C = item.shards, len(origin)
    new_shards = old_shards.for_classes(C)
    first, last = new_shards.shard_bounds(C)
    here = origin[first:last]

    def rows(values: Tensor, unseen: Any) -> Tensor:
        """Entries (n, …) of the classes here, from those of the old classes; ``unseen`` for classes without one."""
        wanted = here.to(values.device)
        taken = old_shards.gather_rows(values, wanted.clamp(min=0))
        unseen = torch.as_tensor(unseen, dtype=values.dtype, device=values.device)
        return torch.where((wanted >= 0).view(-1, *(1,) * (values.dim() - 1)), taken, unseen)

    if hasattr(item, "slot_buffers"):
        _renumber(item, origin)
    for name, dimension in item.class_dimensions().items():
        value = getattr(item, name)
        if name in item._buffers:
            begun = item.first_embeddings if name == "taken" and init is not None else 0
            setattr(item, name, rows(value, getattr(item, "unseen_class", {}).get(name, begun)))
            continue
        # Centres are columns of a matrix on one process.
        counted = 1 if hasattr(item, "by_class") and value.dim() == 2 else dimension
        shape = list(value.shape)
        shape[counted] = shape[counted] // item.num_classes * C
        made = new_shards.new_parameter(item, name, torch.Size(shape))
        entries = unseen = _by_class(item, local_of(made), dimension)
        if init is not None and len(init) and name == item.matrix_name:
            unseen = init[(origin < 0).cumsum(0)[first:last].sub(1).clamp(min=0).to(init.device)]
        entries.copy_(rows(_by_class(item, local_of(value), dimension), unseen))
        parameter = nn.Parameter(made, requires_grad=value.requires_grad)
        setattr(item, name, parameter)
        if optimizer is not None:
            _follow(optimizer, item, value, parameter, dimension, rows)
    item.shards, item.num_classes = new_shards, C
    if isinstance(optimizer, ProxyOptimizer):
        optimizer.rebind(item)


def _renumber(bank: Any, origin: Tensor) -> None:
    """Give the rows of a bank their new labels; slots of dropped classes are empty."""
    successor = torch.full((bank.num_classes,), ABSENT, dtype=torch.int64, device="cpu")
    successor[origin[origin >= 0]] = (origin >= 0).nonzero().flatten()
    features, labels, sample_ids = (local_of(getattr(bank, name)) for name in bank.slot_buffers)
    labels.copy_(torch.where(labels < 0, labels, successor.to(labels.device)[labels.clamp(min=0)]))
    features.masked_fill_((labels < 0)[:, None], 0)
    sample_ids.masked_fill_(labels < 0, -1)


def _by_class(item: Any, value: Tensor, dimension: int) -> Tensor:
    """A view with the entries of the classes first: (C, …)."""
    by_class: Tensor = item.by_class("", value) if hasattr(item, "by_class") else value.movedim(dimension, 0)
    return by_class


def _follow(optimizer: Any, item: Any, old: Tensor, new: nn.Parameter, dimension: int, rows: Rows) -> None:
    """Replace a parameter in its optimiser, with its state."""
    group = next((group for group in optimizer.param_groups if any(held is old for held in group["params"])), None)
    if group is None:
        return
    group["params"] = [new if held is old else held for held in group["params"]]
    first = group.get("initial_accumulator_value", 0.0)
    state = optimizer.state.pop(old, {})
    for name, value in state.items():
        if not isinstance(value, Tensor) or not value.dim():
            continue
        local = local_of(value)
        if value.shape == old.shape:
            moved = torch.empty_like(local_of(new), dtype=value.dtype)
            _by_class(item, moved, dimension).copy_(rows(_by_class(item, local, dimension), first))
        else:  # a number for each class, or centre
            moved = rows(local.reshape(-1, getattr(item, "centers", None) or 1), first).reshape(-1, *value.shape[1:])
        state[name] = shard_like(new, moved)
    optimizer.state[new] = state
