"""A step of a loss as two CUDA graphs, one of the value and one of the gradients, which are the caller's own."""

import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import in_eager_mode, is_recorded
from robustdml_ops.backends.triton_device import exact_float32_products
from robustdml_ops.engine import similarity_chunks
from robustdml_ops.engine.proxy_update import owner_of
from robustdml_ops.losses.inputs import LossInputs

# Steps before the capture: they compile, load and check kernels, which a capture cannot.
WARM_UP = 3


class Graphs(NamedTuple):
    """A recording. Replays read ``inputs`` and ``upstream``, and write ``value`` and ``gradients``."""

    forward: Any
    backward: Any
    inputs: dict[str, Tensor]
    upstream: Tensor
    value: Tensor
    gradients: list[Tensor | None]  # of the inputs that want one, then of the parameters that do


class RecordedStep:
    """A loss whose steps of one signature are replayed; made by ``loss.recorded(…)``, and called like the loss.

    Value and gradients are those of the loss, in memory of the caller's own: ``.grad`` may be kept or added to. Each
    backward belongs to the last call. A call of other shapes or types, or in another mode (training, autocast,
    backend), is a plain step of the loss. Once a setting changes or a parameter moves, all are, and the memory of the
    graphs is freed. The first plain step is noted by a warning.

    Attributes
    ----------
    loss : Module
        The loss, whose parameters are trained.
    graphs : object or None
        The recording; None once it has been given up.

    Raises
    ------
    RuntimeError
        In backward: with ``create_graph=True``, a second time, or after another call. In a call: under ``torch.func``,
        or within the capture of another graph.
    """

    def __init__(self, loss: Any, inputs: Sequence[Any], named: dict[str, Any]) -> None:
        self.loss, self._signature = loss, inspect.signature(loss.forward)
        tensors = _by_name(self._signature, inputs, named)
        _refuse(loss, tensors)
        self.turn = 0  # of the call whose gradients the graph of backward gives
        self._told = False
        self._kinds = {name: _kind(tensor) for name, tensor in tensors.items()}
        self._mode = _mode(loss, tensors)
        self.graphs: Graphs | None = self._record(tensors)
        self._fixed = _fixed(loss)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loss!r})"

    def __call__(self, *inputs: Any, **named: Any) -> Tensor:
        """The loss of a batch, with the arguments of the loss."""
        loss = self.loss
        tensors = _by_name(self._signature, inputs, named)
        if loss._observation is not None:
            observed: Tensor = loss(**tensors)
            return observed
        first = next((tensor for tensor in tensors.values() if isinstance(tensor, Tensor)), None)
        if first is not None:
            _refuse_modes(loss, first)
        reason = self._difference(tensors)
        if reason is not None:
            if not self._told:
                self._told = True
                warnings.warn(f"a recorded {type(loss).__name__} takes a plain step: {reason}", stacklevel=2)
            plain: Tensor = loss(**tensors)
            return plain
        watching = getattr(loss, "first_steps", None) if loss.training else None
        if watching is not None and watching.over:
            watching = None
        if watching is not None:
            seen = LossInputs(*(tensors.get(name) for name in LossInputs._fields))  # type: ignore[arg-type]
            watching.look(loss, seen)
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        value: Tensor = _Replay.apply(self, list(tensors), *tensors.values(), *parameters)  # type: ignore[no-untyped-call]
        if watching is not None:
            watching(loss, seen, value)
        return value

    def _difference(self, tensors: dict[str, Any]) -> str | None:
        """Why these inputs need a plain step; the graphs are freed where no later ones can be replayed either."""
        if self.graphs is None or self._fixed != _fixed(self.loss):
            self.graphs, self.turn = None, self.turn + 1
            return "its settings, or the memory of its parameters, are no longer those that were recorded: record again"
        given = {name: _kind(tensor) for name, tensor in tensors.items()}
        if given.keys() != self._kinds.keys():
            return f"the inputs are {', '.join(given)}, and {', '.join(self._kinds)} were recorded"
        for name, kind in given.items():
            known = self._kinds[name]
            if kind[:-1] != known[:-1] or kind[-1] > known[-1]:
                return f"{name} is {_described(kind)}, and {_described(known)} was recorded"
        if _twins(tensors) != _twins(self.graphs.inputs):
            return "other inputs are one and the same tensor"
        if self._mode != _mode(self.loss, tensors):
            return "training mode, autocast, backend, precision or saved bytes are not those that were recorded"
        return None

    def _record(self, tensors: dict[str, Tensor]) -> Graphs:
        loss, first = self.loss, next(iter(tensors.values()))
        device, own = first.device, dict[int, Tensor]()
        for tensor in tensors.values():  # the same tensor twice stays the same
            own.setdefault(id(tensor), torch.empty_like(tensor).copy_(tensor.detach()))
            own[id(tensor)].requires_grad_(tensor.requires_grad)
        inputs = {name: own[id(tensor)] for name, tensor in tensors.items()}
        wanted = [tensor for tensor in chain(own.values(), loss.parameters()) if tensor.requires_grad]
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.device(device), _unwatched(loss), _uncached_autocast(device), _unchanged_buffers(loss):
                stream.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        value = loss(**inputs)
                        upstream = torch.full_like(value, 0.5)
                        torch.autograd.grad(value, wanted, upstream, allow_unused=True)
                torch.cuda.current_stream(device).wait_stream(stream)
                forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
                pool = torch.cuda.graph_pool_handle()
                # Of this thread alone: others, such as a loader's, may allocate meanwhile.
                options: dict[str, Any] = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
                with torch.cuda.graph(forward, **options):
                    value = loss(**inputs)
                with torch.cuda.graph(backward, **options):
                    gradients = torch.autograd.grad(value, wanted, upstream, allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"a step of {type(loss).__name__} can't be recorded: {error}. Call the loss itself"
            ) from error
        return Graphs(forward, backward, inputs, upstream, value.detach(), list(gradients))

    def replay(self, tensors: dict[str, Tensor]) -> Tensor:
        """The value of these inputs."""
        assert self.graphs is not None
        for name, tensor in tensors.items():
            self.graphs.inputs[name].detach().copy_(tensor)
        self.graphs.forward.replay()
        self.turn += 1
        return self.graphs.value.clone()

    def places(self) -> list[tuple[Tensor, int]]:
        """The inputs of the graphs, and for each the place of the first that is the same tensor."""
        assert self.graphs is not None
        return list(zip(self.graphs.inputs.values(), _twins(self.graphs.inputs), strict=True))

    def replay_gradients(self, turn: int, upstream: Tensor) -> list[Tensor | None]:
        """The gradients of the call that was the ``turn``-th, once."""
        if self.graphs is None or turn != self.turn:
            raise RuntimeError(
                f"a recorded {type(self.loss).__name__} has the gradients of its last call alone, once: take backward "
                "before the next call, and with retain_graph=True, or several calls for one backward, the loss itself"
            )
        self.turn += 1
        self.graphs.upstream.copy_(upstream)
        self.graphs.backward.replay()
        return [None if gradient is None else gradient.clone() for gradient in self.graphs.gradients]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: RecordedStep, names: list[str], *tensors: Tensor) -> Tensor:
        value = step.replay(dict(zip(names, tensors, strict=False)))
        ctx.step, ctx.turn, count = step, step.turn, len(names)
        # One that is given twice has its gradient at the first place.
        ctx.wants = [tensor.requires_grad and twin == place for place, (tensor, twin) in enumerate(step.places())]
        ctx.wants += [True] * (len(tensors) - count)
        ctx.save_for_backward(*tensors[len(names) :])  # whose versions are compared, as a plain step's are
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: a recorded step is not differentiable twice: call the loss itself")
        _ = ctx.saved_tensors
        found = iter(ctx.step.replay_gradients(ctx.turn, upstream))
        return (None, None, *(next(found) if wanted else None for wanted in ctx.wants))


def _by_name(signature: inspect.Signature, inputs: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are given, in the order of the signature."""
    given = signature.bind(*inputs, **named).arguments
    given |= given.pop("unknown", {})
    return {name: value for name, value in given.items() if value is not None}


def _refuse(loss: Any, tensors: dict[str, Any]) -> None:
    """Raise for operations that a CUDA graph cannot repeat."""
    name = type(loss).__name__
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{key} must be a tensor to be recorded, got {type(tensor).__name__}: call the loss itself")
        if not _records(tensor.device):
            raise ValueError(f"{key} is on {tensor.device}: CUDA graphs need a CUDA device. Call the loss itself")
    if not tensors:
        raise TypeError(f"recorded() takes the inputs of a call of {name}, and got none")
    _refuse_modes(loss, next(iter(tensors.values())))
    parameters = list(loss.parameters())
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in chain(tensors.values(), parameters)):
        raise ValueError(f"no gradient is wanted of this step of {name}: call the loss itself, or enable gradients")
    if any(owner_of(parameter) is not None for parameter in parameters):
        raise RuntimeError(
            f"the optimiser of {name} steps within its sweep, and a graph would repeat this step with its number and "
            "rate: train the proxies with torch.optim.AdamW(capturable=True), or call the loss itself"
        )
    if getattr(loss, "negatives", None) is not None:
        raise RuntimeError(
            f"{name} draws its negatives anew for each step, and a graph would repeat one draw: take "
            "negative_share=1, or call the loss itself"
        )
    if loss._observation is not None:
        raise RuntimeError(f"{name} is observed, and a graph would fill the same observation: record it outside")
    if loss.shards.divided or not getattr(loss, "is_fused", lambda: True)():
        why = "its classes or samples are divided" if loss.shards.divided else "its reducer or distance is not fused"
        raise RuntimeError(f"{name} can't be recorded, as {why}: call the loss itself")


def _refuse_modes(loss: Any, tensor: Tensor) -> None:
    if not in_eager_mode(tensor) or is_recorded(tensor.device):
        raise RuntimeError(
            f"a recorded {type(loss).__name__} runs neither under torch.func, forward mode or torch.compile, nor "
            "within the capture of another CUDA graph: call the loss itself there"
        )


def _records(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


def _kind(tensor: Any) -> tuple[Any, ...]:
    """What a recording knows of an input; last whether it wants a gradient, which may be more than a call wants."""
    if not isinstance(tensor, Tensor):
        return (type(tensor), False)
    wants = tensor.requires_grad and torch.is_grad_enabled()
    return (type(tensor), tuple(tensor.shape), tensor.dtype, tensor.device, wants)


def _described(kind: tuple[Any, ...]) -> str:
    if len(kind) == 2:
        return str(kind[0].__name__)
    return f"{kind[1]} {kind[2]} on {kind[3]}{' with a gradient' if kind[4] else ''}"


def _twins(tensors: dict[str, Tensor]) -> list[int]:
    """For each input the place of the first one that is the same tensor."""
    each = [id(tensor) for tensor in tensors.values()]
    return [each.index(one) for one in each]


def _mode(loss: Any, tensors: dict[str, Tensor]) -> tuple[Any, ...]:
    """What a call may change for itself alone."""
    device = next(iter(tensors.values())).device
    cast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
    environment = (os.environ.get("ROBUSTDML_BACKEND"), similarity_chunks.saved_limit, exact_float32_products(device))
    return (loss.training, cast, *environment)


def _fixed(loss: Any) -> tuple[Any, ...]:
    """Settings of the loss, by the number of their changes, and the addresses of what a graph reads."""
    bound = [owner_of(parameter) is None for parameter in loss.parameters()]
    read = [(one.data_ptr(), one.dtype, one.requires_grad) for one in chain(loss.parameters(), loss.buffers())]
    return (sum(getattr(module, "_changes", 0) for module in loss.modules()), *bound, *read)


@contextmanager
def _unwatched(loss: Any) -> Iterator[None]:
    """Steps that are made to record one are none of training."""
    looks = loss.__dict__.pop("first_steps", None)  # the class has None
    try:
        yield
    finally:
        if looks is not None:
            loss.__dict__["first_steps"] = looks


@contextmanager
def _uncached_autocast(device: torch.device) -> Iterator[None]:
    """Autocast as it is, with its casts within the graph."""
    dtype, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
    with torch.autocast(device.type, dtype, enabled=enabled, cache_enabled=False):
        yield


@contextmanager
def _unchanged_buffers(loss: Any) -> Iterator[None]:
    """Buffers are afterwards as they were."""
    before = [(buffer, buffer.clone()) for buffer in loss.buffers()]
    try:
        yield
    finally:
        for buffer, values in before:
            buffer.copy_(values)
