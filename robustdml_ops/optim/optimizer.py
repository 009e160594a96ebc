"""The base class of the optimisers: it binds losses, and ``step()`` confirms the update that a sweep has made."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustdml_ops.engine.proxy_update import bind, owner_of
from robustdml_ops.engine.shards import check_held, is_sharded, local_of, shard_like, shard_loaded
from robustdml_ops.engine.validation import check_local, check_number, check_positive
from robustdml_ops.losses.families.class_matrix import ClassMatrixLoss
from robustdml_ops.optim.step import ProxyStep, widened

# Settings of torch's optimisers that none of this package has.
FOREIGN = ("amsgrad", "capturable", "differentiable", "foreach", "fused", "maximize")
PROXY_TYPES = (torch.float32, torch.float64, torch.bfloat16)
Losses = nn.Module | Iterable[nn.Module | dict[str, Any]]


class ProxyOptimizer(torch.optim.Optimizer):
    """Base class of the optimisers of this package; a subclass adds the formula.

    A bound loss updates its proxies itself: the Proxy-Anchor family in its forward, which has the gradients already,
    the losses over classes in their backward. ``step()`` confirms the update.
    A loss in eval mode, under ``torch.no_grad()``, and a copy of a loss update nothing.
    """

    kind: ClassVar[str]  # its name in the native module
    moment_names: ClassVar[tuple[str, ...]]  # in ``state``, in the order of the formula
    by_row: ClassVar[bool] = False  # whether a moment is a number a row

    def __new__(cls, *arguments: Any, **settings: Any) -> Any:
        """Refuse settings of torch's optimisers by name."""
        if foreign := [name for name in FOREIGN if name in settings]:
            raise TypeError(
                f"{cls.__name__} has no {', '.join(foreign)}: the sweep updates proxies and moments in one pass on "
                "every device. Leave the argument out"
            )
        return super().__new__(cls)

    def __init__(self, losses: Losses, scale: float, scaler: Any, defaults: dict[str, Any]) -> None:
        check_positive(scale=scale)
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
        self.scale, self.scaler = float(scale), scaler
        self._steps: list[ProxyStep] = []
        several = [losses] if isinstance(losses, nn.Module | Tensor) else list(losses)
        groups = [group if isinstance(group, dict) else {"loss": group} for group in several]
        # Loading a state makes torch add names of its own to ``defaults``.
        self._own_settings = tuple(defaults)
        super().__init__(groups, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Bind another loss: ``{"loss": loss, ...}`` with settings of its own, such as ``lr``."""
        group = dict(param_group)
        loss: Any = self._checked(group.pop("loss", group.get("params")))
        parameter: Any = loss._class_parameter()
        self._check({**self.defaults, **group})
        group["params"] = [parameter]
        super().add_param_group(group)
        # Allocate the state now: checkpoints contain it, and a lack of memory shows before training.
        self.state[parameter] = {"step": torch.tensor(0.0, dtype=torch.float32, device="cpu")}
        self.add_moments(self.state[parameter], self.param_groups[-1], parameter, len(loss._class_matrix()))
        self._bind(loss, len(self._steps))

    def add_moments(self, state: dict[str, Any], group: Mapping[str, Any], parameter: Any, rows: int = 0) -> None:
        """Allocate in ``state`` the moments that settings of ``group`` need and that are not there."""
        if not state.keys() >= set(self.moments_of(group)):
            for name, moment in self._moments(group, local_of(parameter), rows).items():
                state.setdefault(name, shard_like(parameter, moment))

    def moments_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the moments that a step with the settings of ``group`` has."""
        return self.moment_names

    def rebind(self, loss: Any) -> None:
        """Bind the parameter that has replaced the one of a bound loss, in its group and in the state."""
        for number, group in enumerate(self.param_groups):
            if group["params"][0] is loss._class_parameter():
                self._bind(loss, number)

    def _bind(self, loss: ClassMatrixLoss, number: int) -> None:
        """Bind the parameter of group ``number``."""
        parameter: Any = loss._class_parameter()
        first, _ = loss.shards.shard_bounds(loss.num_classes)
        step = ProxyStep(self, parameter, number, first * (parameter.numel() // loss.num_classes))
        self._steps[number : number + 1] = [step]
        bind(step)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Confirm that a sweep has updated the proxies since the last call.

        Raises
        ------
        RuntimeError
            No sweep has; or backward has not run since; or the proxies have a gradient from elsewhere.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for step in self._steps:
            step.check_gradient()
        swept = [step for step in self._steps if step.swept]
        if not swept:
            if not any(step.parameter.requires_grad for step in self._steps):
                raise RuntimeError(
                    f"{self._name}.step(): the proxies of all bound losses are frozen (requires_grad=False), so no "
                    "sweep updates them. Leave out step() while they are, or set requires_grad=True"
                )
            raise RuntimeError(
                f"{self._name}.step() without an update: since the last one no bound loss has had its backward. "
                "Call it once after each loss.backward(), with the loss in train mode, and not under torch.compile. "
                "Where the loss has other proxies now, as after load_state_dict(assign=True), make the optimiser anew"
            )
        if not all(step.confirmed for step in swept):
            raise RuntimeError(
                f"{self._name}.step() before backward: the forward has updated the proxies, and loss.backward() "
                "has not come yet. Where the batch is given up, call abandon()"
            )
        for step in swept:
            step.close()
        return loss

    def abandon(self) -> None:
        """Give up a batch that will have no ``step()``, as after an error; updates that were made stay."""
        for step in self._steps:
            step.close()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set ``.grad`` to None; updates are not undone."""
        super().zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """The state of a torch optimiser; the dtype of moments is a string, which every checkpoint format can store."""
        state: dict[str, Any] = super().state_dict()
        for group in state["param_groups"]:
            if "moments" in group:
                group["moments"] = str(group["moments"])
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of a torch optimiser; moments keep the dtype of this one.

        ValueError where a moment is missing or of another shape, or a setting has no counterpart here; nothing has been
        loaded then.
        """
        groups, moments = state_dict["param_groups"], [group.get("moments") for group in self.param_groups]
        seeds = [group.get("seed") for group in self.param_groups]
        loaded = [state_dict["state"].get(place, {}) for group in groups for place in group["params"]]
        own = [dict(self.state[step.parameter]) for step in self._steps]
        if len(loaded) == len(groups) == len(own):
            for place, (step, group, dtype, state) in enumerate(zip(self._steps, groups, moments, own, strict=True)):
                self._check_saved(group)
                wanted = {**group, "moments": dtype}
                self.add_moments(state, wanted, step.parameter)
                needed = {name: state[name] for name in self.moments_of(wanted)}
                saved = loaded[place] = self._saved(loaded[place], needed)
                for unused in state.keys() - saved.keys() - {"step", *needed}:
                    del state[unused]
                _check_state(saved, state)
        super().load_state_dict(dict(state_dict))
        for step, saved, state in zip(self._steps, loaded, own, strict=True):
            # As saved: torch has rounded its copy to the type of the proxies.
            for name, value in state.items():
                value.copy_(shard_loaded(value, _laid_out(saved[name], value)))
            self.state[step.parameter] = state
        for group, dtype, seed in zip(self.param_groups, moments, seeds, strict=True):
            if dtype is not None:
                group["moments"] = dtype
                group.setdefault("seed", seed)  # torch's optimisers have none
            if "radians" in self._own_settings:
                group.setdefault("radians", False)
        self.abandon()

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied or pickled: a copy would be bound to nothing."""
        raise TypeError(f"{self._name} is bound to its losses: save its state_dict(), and load that into a new one")

    def group_of(self, parameter: Tensor) -> dict[str, Any]:
        """The current settings of ``parameter``."""
        for group in self.param_groups:
            if group["params"][0] is parameter:
                return group
        raise RuntimeError(
            f"the loss has other proxies than when it was computed, as after grow_classes, and {self._name} has those: "
            "call backward before"
        )

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _checked(self, loss: object) -> ClassMatrixLoss:
        """``loss``, or an error where its proxies can't be bound."""
        if not isinstance(loss, ClassMatrixLoss):
            parts = loss.named_children() if isinstance(loss, nn.Module) else ()
            within = [f".{name}" for name, part in parts if isinstance(part, ClassMatrixLoss)]
            raise TypeError(
                f"{self._name} takes losses of this package that have proxies, such as ProxyAnchorLoss, or "
                f'{{"loss": loss, "lr": …}} of each, got {type(loss).__name__}: pass '
                + (f"its {' and '.join(within)}" if within else "the loss, not its parameters")
            )
        check_held(loss)
        parameter: Any = loss._class_parameter()
        if not loss.shards.divided:
            check_local("the proxies", parameter)
        if not isinstance(parameter, nn.Parameter) or parameter.dtype not in PROXY_TYPES:
            raise TypeError(
                f"the proxies must be a parameter of float32, float64 or bfloat16, got {parameter.dtype}: call "
                f"{type(loss).__name__}.bfloat16() for proxies of two bytes; embeddings may be of any type"
            )
        for name in ("weight_regularizer", "regularizer_weight"):
            if getattr(loss, name, None):
                raise ValueError(
                    f"{name} of {type(loss).__name__} makes a gradient of all proxies beside the sweep: leave it out, "
                    "or train the proxies with an optimiser of torch.optim"
                )
        owner = owner_of(parameter)
        if isinstance(owner, ProxyStep) and owner.optimizer() is not None:
            raise ValueError(
                f"the proxies of {type(loss).__name__} belong to {type(owner.optimizer()).__name__} already: bind them "
                "to one optimiser, or delete that one first"
            )
        return loss

    def formula(
        self, group: dict[str, Any], step: int, P: Tensor, moments: tuple[Tensor, ...], G: Tensor
    ) -> tuple[Tensor, ...]:
        """P (c, D) and its moments after step number ``step`` ≥ 1, in the type of P, with the gradient G (c, D)."""
        raise NotImplementedError

    def native_settings(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        """The settings of a step by their names in the native module."""
        raise NotImplementedError

    def _check(self, group: dict[str, Any]) -> None:
        """Raise where a setting of a group is out of range."""
        check_settings(group)

    def _saved(self, state: Mapping[str, Any], needed: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The state of a parameter to load, which may be of torch's optimiser; ``needed``: moments of its settings."""
        return state

    def _check_saved(self, group: Mapping[str, Any]) -> None:
        """Raise where a group to load has settings of another optimiser."""
        added = ("moments", "seed", "radians")  # states without them are read
        other = [f"no {name}" for name in self._own_settings if name not in added and name not in group]
        other += [f"{name}=True" for name in ("amsgrad", "maximize") if group.get(name)]
        if group.get("decoupled_weight_decay") is False and group.get("weight_decay"):  # Adam's
            other.append("decoupled_weight_decay=False")
        if other:
            found = ", ".join(other)
            raise ValueError(f"the state to load has {found}: it is of an optimiser that {self._name} does not compute")

    def _moments(self, group: Mapping[str, Any], parameter: Tensor, rows: int) -> dict[str, Tensor]:
        """The state before the first step, of the shape and strides of ``parameter`` or of one number a row: zeros."""
        dtype = torch.bfloat16 if group["moments"] == torch.bfloat16 else widened(parameter.dtype)
        shape, stride, device = parameter.shape, parameter.stride(), parameter.device
        return {
            name: torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
            for name in self.moments_of(group)
        }


def check_settings(group: Mapping[str, Any], **closed: float) -> None:
    """Raise where a number is negative or not finite, or one of ``closed`` is not in [0, 1)."""
    for name in ("lr", "weight_decay", "eps", "initial_accumulator_value"):
        value = group.get(name, 0.0)
        check_number(name, float(value) if isinstance(value, Tensor) else value)
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be finite and not negative, got {value}")
    for name, value in closed.items():
        check_number(name, value)
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}")
    dtype = group.get("moments", torch.float32)
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"moments={dtype}: expected torch.float32, or torch.bfloat16; float64 proxies have float64 moments"
        )
    seed = group.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be an integer, at least 0, got {seed!r}")


def _laid_out(saved: Any, own: Tensor) -> Tensor:
    """A loaded moment of centres, (D, C·H) or (C·H,) on one process, (C, H, D) or (C, H) on shards, as ``own`` lies."""
    loaded: Tensor = torch.as_tensor(saved)
    if is_sharded(loaded) and loaded.shape != own.shape:
        loaded = saved.full_tensor()  # PyTorch cannot reshape uneven shards
    if (loaded.dim(), own.dim()) == (2, 3):
        loaded = loaded.t().reshape(-1, own.shape[1], len(loaded))
    elif (loaded.dim(), own.dim()) == (3, 2):
        loaded = loaded.flatten(0, 1).t()
    elif {loaded.dim(), own.dim()} == {1, 2}:
        loaded = loaded.reshape(-1, *own.shape[1:])
    return loaded


def _check_state(saved: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
    for name, value in own.items():
        if name not in saved:
            raise ValueError(f"the state to load has no {name!r}: it is of another optimiser, or of one without a step")
        shape = tuple(torch.as_tensor(saved[name]).shape)
        if tuple(_laid_out(saved[name], value).shape) != tuple(value.shape):
            raise ValueError(
                f"{name} to load is of shape {shape}, and the proxies' is {tuple(value.shape)}: it belongs to another "
                "number of classes or embedding size. Nothing has been loaded"
            )
