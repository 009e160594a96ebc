"""A step whose batch goes through the network a micro-batch at a time, with the gradients of the whole batch."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states


def backward_in_micro_batches(
    loss: Callable[..., Tensor], *towers: tuple[nn.Module, Any], micro_batch: int, scaler: Any = None
) -> Tensor:
    """Loss of a batch and all gradients, with the activations of one micro-batch in memory.

    1. Each network embeds its inputs a micro-batch at a time, and keeps the embeddings alone.
    2. ``loss`` sees the embeddings of the whole batch. Its backward gives the gradient of each embedding, and those of
       the loss's own parameters.
    3. Each network embeds each micro-batch again, with the same random numbers, and backward takes its part of the
       gradients.

    Embeddings, loss and gradients are those of the whole batch, for any ``micro_batch``; a step takes one more forward
    of the network. The graph of a loss of pairs needs all embeddings at once, so adding up the gradients of smaller
    batches gives another loss. Autocast is that of the caller, and the random numbers afterwards are those after 2. On
    several processes each calls it with its own samples; ``DistributedDataParallel`` reduces the gradients once, with
    the last micro-batch.

    Parameters
    ----------
    loss : callable
        Of the embeddings of each tower, (B, D) each; gives a loss (). It holds labels, weights, memory or filter:
        ``lambda embeddings: loss_function(embeddings, labels, sample_weights=weights)``.
    *towers : tuple of Module and inputs
        A network, and what it is called with: a tensor, a tuple or list of arguments, or a mapping of arguments by
        name. All tensors within have B rows; anything else is passed on as it is. The network gives (B, D).
    micro_batch : int
        Samples that go through a network at once, at least 1.
    scaler : torch.amp.GradScaler, optional
        Scales the loss before backward; call its ``step`` and ``update`` as always.

    Returns
    -------
    Tensor
        The loss, (), without a graph.

    Raises
    ------
    ValueError, TypeError
        A micro-batch below 1, inputs whose tensors differ in length, a network that gives other than a row for each
        sample, a loss that is not one number or does not depend on the embeddings.
    RuntimeError
        On the CPU, where a network gives other embeddings in 3 than in 1: it draws random numbers that are not
        PyTorch's, or has a state that is no buffer.

    Warns
    -----
    UserWarning
        Batch normalisation in training mode normalises by the micro-batch, so embeddings depend on its size.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops import backward_in_micro_batches
    >>> from robustdml_ops.losses import SupConLoss
    >>> network, loss_function = torch.nn.Linear(20, 8), SupConLoss()
    >>> images, labels = torch.randn(96, 20), torch.arange(96) // 4
    >>> loss = backward_in_micro_batches(
    ...     lambda embeddings: loss_function(embeddings, labels), (network, images), micro_batch=32
    ... )
    >>> network.weight.grad.shape
    torch.Size([8, 20])
    """
    if not isinstance(micro_batch, int) or micro_batch < 1:
        raise ValueError(f"micro_batch must be a whole number, at least 1, got {micro_batch!r}")
    if not towers:
        raise TypeError("no tower is given: pass (network, inputs) after the loss")
    passes = [_Tower(*tower, micro_batch) for tower in towers]
    layers = (layer for tower in passes for layer in tower.network.modules())
    if any(isinstance(layer, _BatchNorm) and layer.training for layer in layers):
        warnings.warn(
            "batch normalisation in training mode normalises by the micro-batch: put those layers in eval(), take "
            "another normalisation, or a larger micro_batch",
            stacklevel=2,
        )
    leaves = [tower.embed().requires_grad_() for tower in passes]
    value = loss(*leaves)
    if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
        shape = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be one number () that depends on the embeddings, got {shape}")
    with torch.autocast(value.device.type, enabled=False):
        (value if scaler is None else scaler.scale(value)).backward()
    for place, (tower, leaf) in enumerate(zip(passes, leaves, strict=True)):
        if leaf.grad is None:
            raise ValueError(f"the loss does not depend on the embeddings of tower {place}: leave that tower out")
        tower.backward(leaf, last=all(tower.network is not other.network for other in passes[place + 1 :]))
    return value.detach()


class _Tower:
    """A network, its inputs, and the random numbers of each of their micro-batches."""

    def __init__(self, network: nn.Module, inputs: Any, micro_batch: int) -> None:
        lengths = {len(tensor) if tensor.dim() else 0 for tensor in _tensors(inputs)}
        if len(lengths) != 1:
            raise ValueError(f"all tensors of a tower's inputs must have as many rows, got {sorted(lengths)} rows")
        self.network, self.inputs, self.states = network, inputs, list[Any]()
        self.module = network.module if isinstance(network, DistributedDataParallel) else network
        (B,) = lengths
        self.parts = [(first, min(B, first + micro_batch)) for first in range(0, max(B, 1), micro_batch)]
        self.devices = list({one.device: one for one in (*network.parameters(), *_tensors(inputs))}.values())

    def embed(self) -> Tensor:
        """The embeddings (B, D) without a graph; the network's buffers are as before."""
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        found = []
        for first, last in self.parts:
            self.states.append((torch.get_rng_state(), *get_device_states(*self.devices)))
            found.append(self._rows(self.module, first, last).detach())
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        return torch.cat(found)

    def backward(self, embeddings: Tensor, last: bool) -> None:
        """Embed again, and take the gradients of ``embeddings`` through the network, each reduced with the ``last``."""
        devices = [one.device for one in self.devices if one.device.type not in ("cpu", "meta")]
        kind = devices[0].type if devices else "cuda"
        with torch.random.fork_rng([one.index for one in devices], device_type=kind):
            for (first, end), (state, numbers, states) in zip(self.parts, self.states, strict=True):
                torch.set_rng_state(state)
                if numbers:
                    set_device_states(numbers, states, device_type=kind)
                waits = not (last and (first, end) == self.parts[-1])
                with self._without_reduction(waits):
                    again = self._rows(self.network, first, end)
                    _check_same(again, embeddings[first:end])
                    if again.requires_grad and embeddings.grad is not None:
                        with torch.autocast(again.device.type, enabled=False):
                            again.backward(embeddings.grad[first:end])  # type: ignore[no-untyped-call]

    def _rows(self, network: nn.Module, first: int, last: int) -> Tensor:
        """The embeddings of some samples."""
        rows = _sliced(self.inputs, first, last)
        device = next((tensor.device.type for tensor in _tensors(rows)), "cpu")
        with _autocast_without_cache(device):
            if isinstance(rows, Mapping):
                found = network(**rows)
            else:
                found = network(*rows) if isinstance(rows, tuple | list) else network(rows)
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != last - first:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"a network must give embeddings ({last - first}, D) of {last - first} samples, got {shape}"
            )
        return found

    def _without_reduction(self, waits: bool) -> AbstractContextManager[Any]:
        reduces = isinstance(self.network, DistributedDataParallel)
        return self.network.no_sync() if waits and reduces else nullcontext()  # type: ignore[operator]


def _autocast_without_cache(device: str) -> AbstractContextManager[Any]:
    """The caller's autocast, whose cache would hold casts of weights from one graph to the next."""
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False)


def _check_same(again: Tensor, embeddings: Tensor) -> None:
    """Raise where a network on the CPU gives other embeddings than before; a GPU would be waited for."""
    if again.device.type == "cpu" and again.numel():
        difference = (again.detach() - embeddings.detach()).abs().max()
        if difference > 0.01 * embeddings.detach().abs().max():
            raise RuntimeError(
                "the network gives other embeddings the second time: its random numbers must be PyTorch's, and what it "
                "changes in forward must be buffers"
            )


def _tensors(inputs: Any) -> Iterator[Tensor]:
    """The tensors within the inputs of a network."""
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from _tensors(value)
    elif isinstance(inputs, tuple | list):
        for value in inputs:
            yield from _tensors(value)


def _sliced(inputs: Any, first: int, last: int) -> Any:
    """The inputs of some samples."""
    if isinstance(inputs, Tensor):
        return inputs[first:last]
    if isinstance(inputs, Mapping):
        return {name: _sliced(value, first, last) for name, value in inputs.items()}
    return [_sliced(value, first, last) for value in inputs] if isinstance(inputs, tuple | list) else inputs
