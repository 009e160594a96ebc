"""One optimiser step on one parameter: a sweep takes it, ``step()`` confirms it."""

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import choose, is_recorded
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.random_words import GOLDEN, random_key, random_words
from robustdml_ops.engine.rows.backends import BACKENDS as ROWS
from robustdml_ops.engine.rows.backends import by_columns, new_rows
from robustdml_ops.engine.rows.lengths import SHORTEST
from robustdml_ops.engine.shards import is_sharded, local_of
from robustdml_ops.engine.validation import all_finite

# Rows checked at a time, which bounds the memory of the check.
_ROWS_CHECKED = 1 << 12


class NoGradient(Tensor):
    """In ``.grad`` of updated proxies: a tensor without memory, of their shape, on which every operation raises.

    Clipping by a norm over all parameters, another optimiser's step, the sum with a second gradient, a loss scaler's
    division and DDP's mean over processes then raise, where with None they would silently skip the proxies.
    """

    step: "ProxyStep | None" = None  # whose optimiser has a loss scaler

    @staticmethod
    def __new__(cls, like: Tensor) -> "NoGradient":
        """A placeholder of the shape, type and device of ``like``."""
        made: NoGradient = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        """The shape."""
        return f"NoGradient(size={tuple(self.shape)}, taken within the sweep)"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise for every operation but a loss scaler's look for NaN and inf, and division that the sweep has done."""
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            steps = [gradient.step for gradient in args[0] if isinstance(gradient, NoGradient) and gradient.step]
            if len(steps) == len(args[0]):
                for step in steps:
                    step.tell(args[1])
                return
        raise RuntimeError(
            f"{func} asks for the gradient of proxies that were updated within the sweep of their loss, and no such "
            "gradient exists. Leave the proxies out of torch.nn.utils.clip_grad_norm_, of other optimisers, of other "
            "terms of the loss and of DistributedDataParallel (divide them by shard_classes, and call "
            "leave_out_of_ddp), give their optimiser a torch.amp.GradScaler as scaler=, or train them with an "
            "optimiser of torch.optim"
        )


class ProxyStep(ProxyUpdate):
    """The step of a ``ProxyOptimizer`` on its parameter ``number``; earlier shards have ``before`` elements of it."""

    def __init__(self, optimizer: Any, parameter: Tensor, number: int, before: int = 0) -> None:
        # A weak reference: a deleted optimiser frees its parameter for another one.
        self.optimizer = weakref.ref(optimizer)
        self.parameter, self.local = parameter, parameter
        if is_sharded(parameter):
            self.local = local_of(parameter).detach().requires_grad_()
        self.number, self.before = number, before
        self.swept = self.confirmed = False
        self._known_version: int | None = None  # of the parameter when its values were last checked
        self._skipped: list[Tensor] = []

    @property
    def loss_scale(self) -> float:
        """The optimiser's ``scale``."""
        scale: float = self._alive().scale
        return scale

    @property
    def scaler_factor(self) -> float | Tensor | None:
        """The factor of the optimiser's loss scaler; on a GPU a tensor (), for which the host does not wait."""
        scaler = self._alive().scaler
        if scaler is None or not scaler.is_enabled():
            return None
        factor = None if self.local.device.type == "cpu" else scaler._get_scale_async()
        known: float | Tensor = scaler.get_scale() if factor is None else factor
        return known

    @property
    def settings(self) -> dict[str, object]:
        """The optimiser, its settings and its scale."""
        optimizer = self._alive()
        group = {name: value for name, value in optimizer.group_of(self.parameter).items() if name != "params"}
        numbers = {name: float(value) if isinstance(value, Tensor) else value for name, value in group.items()}
        named = {f"{name} of its optimiser": value for name, value in {**numbers, "scale": optimizer.scale}.items()}
        step = int(optimizer.state[self.parameter]["step"])
        return {"its optimiser": type(optimizer).__name__, "the steps of its optimiser": step, **named}

    def check_ready(self) -> None:
        """Raise where no step can be taken."""
        if is_recorded(self.local.device):
            raise RuntimeError(
                "a CUDA graph is being recorded, and would repeat this step with the number and the rate that it has "
                "now: record the network alone, or train the proxies with torch.optim.AdamW(capturable=True)"
            )
        if self.swept:
            raise RuntimeError(
                "these proxies have been updated since the last step() of their optimiser: a step takes one loss and "
                "one backward. Instead of accumulating gradients, or of a second loss on the same proxies, take a "
                "larger batch or an optimiser of torch.optim; measure a loss in eval mode or under torch.no_grad(); "
                "give up a batch that failed with abandon()"
            )
        self.check_gradient()
        self._check_moments()

    def begin(self, proxies: Tensor, rows: Tensor | None = None) -> None:
        """Raise where no step can be taken; prepare the settings and moments of this one."""
        self.check_ready()
        if self.version() != self._known_version:
            _check_values(proxies)
        self._known_version = None
        self._skipped = []
        self._matrix, self._rows = proxies.detach(), rows
        optimizer = self._alive()
        self._group = optimizer.group_of(self.parameter)
        state = optimizer.state[self.parameter]
        self._step = int(state["step"]) + 1
        optimizer.add_moments(state, self._group, self.parameter)
        self._moments = tuple(local_of(state[name]) for name in optimizer.moments_of(self._group))
        self._key = step_key(self._group.get("seed", 0), self.number, self._step, self.before)

    def take(self, first: int, G: Tensor) -> None:
        """Step on the rows from ``first`` on by the formula; skip a chunk whose gradient has NaN or inf."""
        compute = widened(self._matrix.dtype)
        G = G.to(compute)
        finite: Tensor | None = None
        if G.device.type != "cpu":
            finite = torch.isfinite(G).all()
        elif not all_finite(G):
            self._skipped.append(torch.ones(1, dtype=torch.bool, device="cpu"))
            return
        last = first + len(G)
        rows = slice(first, last) if self._rows is None else self._rows[first:last]
        wholes = (self._matrix, *(self._by_rows(moment) for moment in self._moments))
        P, *olds = (whole[rows] for whole in wholes)
        given = tuple(old.to(compute) for old in olds)
        news = self._alive().formula(self._group, self._step, P.to(compute), given, G)
        for place, (whole, old, new) in enumerate(zip(wholes, (P, *olds), news, strict=True)):
            if old.dtype != new.dtype:
                words = random_words(self._key - (self._key >> 63 << 64), self._places(rows))
                # The lowest bits are of the first moment, the next of the second, the next of P.
                new = round_at_random(new, words >> (16 * ((place + 2) % 3)))
            whole[rows] = new if finite is None else torch.where(finite, new, old)
        if finite is not None:
            self._skipped.append(~finite)

    def native(self, chunks: int) -> Any:
        """The step as the native module's struct."""
        optimizer = self._alive()
        self._skipped = [torch.zeros(chunks, dtype=torch.bool, device="cpu")]
        moments = dict(zip(("M1", "M2"), (moment.data_ptr() for moment in self._moments), strict=False))
        return getattr(module.library, f"ProxyUpdate_{module.SUFFIX[widened(self._matrix.dtype)]}")(
            kind=optimizer.kind,
            P=self._matrix.data_ptr(),
            bfloat16=any(moment.dtype == torch.bfloat16 for moment in self._moments),
            bfloat16_proxies=self._matrix.dtype == torch.bfloat16,
            key=self._key,
            skipped=self._skipped[0].data_ptr(),
            **moments,
            **optimizer.native_settings(self._group, self._step),
        )

    def finish(self) -> None:
        """Count the step; on the CPU raise where a chunk was skipped."""
        # The native module writes by address, which autograd's version counter does not see.
        torch.autograd.graph.increment_version(self.local)
        self._alive().state[self.parameter]["step"] += 1
        self.swept, self._moments = True, ()
        del self._matrix, self._rows
        self._known_version = self.version()
        on_cpu = self.local.device.type == "cpu"
        if on_cpu and any(bool(skipped.any()) for skipped in self._skipped):
            self._known_version = None
            raise ValueError(
                "a gradient of some proxies is NaN or inf, and their chunk of rows was left as it is: look for an "
                "overflow, or a learning rate too high"
            )

    def check_factor(self, upstream: Tensor) -> None:
        """Raise where dL/dloss is not the scale, times the factor of a loss scaler."""
        scaled = self.scaler_factor
        scale = self.loss_scale if scaled is None else self.loss_scale * scaled
        if upstream.device.type != "cpu":
            right = upstream == scale if scaled is None else (upstream == scale) | ~torch.isfinite(upstream)
            torch._assert_async(right, "the loss has another factor than the scale of its optimiser")
            return
        factor = float(upstream)
        if not math.isfinite(factor):
            if scaled is not None and not self.swept:
                return  # The sweep is still to come, and skips the step.
            raise ValueError("the gradient that arrives at the loss has NaN or inf: look at what the loss goes into")
        if factor != scale:
            found = f"the gradient of the loss is {factor:.6g}, and the optimiser of its proxies takes {scale:g}"
            if scaled is not None:
                raise RuntimeError(
                    f"{found}, scale={self.loss_scale:g} times its scaler's {scaled:g}: take "
                    "scaler.scale(loss).backward() with that scaler, and call its update() after all steps"
                )
            raise RuntimeError(
                f"{found}: give it the loss scaler that multiplies the loss, scaler=torch.amp.GradScaler(…), so that "
                "its steps are divided by the factor. A factor of your own that belongs to the loss is given as "
                f"scale={factor:.6g}, or set as its scale before each loss if it varies; gradients are not accumulated"
            )

    def check_confirm(self, upstream: Tensor) -> None:
        """Raise where backward can't confirm the step."""
        self.check_factor(upstream)
        self.check_gradient()

    def confirm(self, upstream: Tensor | None = None) -> None:
        """Mark that backward has come, and leave a placeholder in ``.grad``."""
        if upstream is None:
            self.check_gradient()
        else:
            self.check_confirm(upstream)
        self.confirmed = True
        self.parameter.grad = self._placeholder()

    def skip(self) -> None:
        """Leave proxies and moments as they are, for the loss scaler that will be asked for the step."""
        self._skipped = [torch.ones(1, dtype=torch.bool, device="cpu")]
        self.parameter.grad = self._placeholder()

    def tell(self, found_inf: Tensor) -> None:
        """Set ``found_inf`` () to 1 where a gradient was NaN or inf, as a loss scaler asks."""
        for skipped in self._skipped:
            found_inf.copy_(torch.maximum(found_inf, skipped.any().to(found_inf)))

    def _placeholder(self) -> NoGradient:
        placeholder = NoGradient(self.parameter)
        placeholder.step = None if self._alive().scaler is None else self
        return placeholder

    def version(self) -> int:
        """The writes to the proxies; those through a DTensor do not count as writes to its shard."""
        return self.parameter._version + self.local._version

    def wrote_unit_rows(self, before: int) -> None:
        """Spare the check of all proxies, where those of version ``before`` are known to be right."""
        if self._known_version == before:
            self._known_version = self.version()

    def check_version(self, version: int) -> None:
        """Raise where the proxies have changed since the forward."""
        if self.version() != version:
            raise RuntimeError(
                "the proxies have been updated since this loss was computed: call backward once, before the next loss "
                "and before anything else changes them"
            )

    def check_gradient(self) -> None:
        """Raise where the proxies have a gradient from elsewhere."""
        if not isinstance(self.parameter.grad, NoGradient | None):
            raise RuntimeError(
                "the proxies have a gradient that did not come from a sweep that updates them: it is of a loss in eval "
                "mode, a regulariser, another loss, or one under torch.compile, which no bound optimiser serves. Set "
                "it to None with zero_grad(), or train these proxies with an optimiser of torch.optim"
            )

    def close(self) -> None:
        """End the step: the next sweep may update."""
        self.swept = self.confirmed = False
        if isinstance(self.parameter.grad, NoGradient):
            self.parameter.grad = None

    def _alive(self) -> Any:
        optimizer = self.optimizer()
        if optimizer is None:
            raise RuntimeError("the optimiser of these proxies is gone: keep it, or compute the loss anew")
        return optimizer

    def _check_moments(self) -> None:
        """Raise where the parameter was moved or converted since its moments were made."""
        P, optimizer = local_of(self.parameter), self._alive()
        for name in optimizer.moment_names:
            moment = optimizer.state[self.parameter].get(name)
            if moment is None:
                continue
            moment = local_of(moment)
            moved = moment.device != P.device or moment.dtype not in (widened(P.dtype), torch.bfloat16)
            moved = moved or self.local.data_ptr() != P.data_ptr()
            if moved or (not optimizer.by_row and moment.stride() != P.stride()):
                raise RuntimeError(
                    f"the proxies are {P.dtype} on {P.device}, of strides {P.stride()}, and their {name} is "
                    f"{moment.dtype} on {moment.device}, of strides {moment.stride()}: make the optimiser after the "
                    "loss has been moved or widened"
                )

    def _by_rows(self, moment: Tensor) -> Tensor:
        """A moment in the layout of the matrix: (C, D), or (C,)."""
        if self._alive().by_row:
            return moment.view(-1)
        return moment.as_strided(self._matrix.shape, self._matrix.stride())

    def _places(self, rows: slice | Tensor) -> Tensor:
        """Places (c, D) of the elements of ``rows``, row · D + column: the numbers of their random words."""
        device, D = self._matrix.device, self._matrix.shape[1]
        numbers = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
        return numbers[:, None] * D + torch.arange(D, device=device)


def _check_values(proxies: Tensor) -> None:
    """On the CPU, raise where a proxy has NaN or inf, or is so short that its gradient may overflow."""
    if proxies.device.type != "cpu":
        return
    compute, columns = widened(proxies.dtype), by_columns(proxies)
    backend = choose(ROWS, None, proxies.device, compute)
    for first in range(0, len(proxies), _ROWS_CHECKED):
        rows = proxies.detach()[first : first + _ROWS_CHECKED]
        if rows.dtype != compute:
            rows = new_rows(rows, len(rows), columns, compute).copy_(rows)
        inverse = rows.new_empty(len(rows))
        backend.inverse_norms(rows, inverse)
        bad = ~(inverse <= 1 / SHORTEST[rows.dtype])
        if bad.any():
            row = int(bad.nonzero()[0])
            length = float(1 / inverse[row])
            what = "has NaN or inf" if inverse[row].isnan() else f"is of length {length:.1e}: scale it up"
            raise ValueError(f"proxies[{first + row}] {what}. No proxy has been updated")


def widened(dtype: torch.dtype) -> torch.dtype:
    """The type in which a step on proxies of ``dtype`` computes, and the one of moments that are not bfloat16."""
    return torch.promote_types(dtype, torch.float32)


def step_key(seed: int, parameter: int, step: int, place: int) -> int:
    """Key of the random words of one step (``csrc/math/counter_random.h``), from ``place`` on; below 2⁶⁴."""
    key = int(random_key(int(random_key(seed, parameter)) % (1 << 64), step))
    return (key + place * GOLDEN) % (1 << 64)


def round_at_random(values: Tensor, bits: Tensor) -> Tensor:
    """``values`` as bfloat16, rounded up with a probability that keeps the mean, by the lowest 16 of ``bits``."""
    # To nearest, what changes by less than half of its last digit a step would never change.
    whole = values.float().view(torch.int32).long() & 0xFFFFFFFF
    upper = ((whole + (bits & 0xFFFF)) >> 16) & 0xFFFF
    return (upper << 16).to(torch.int32).view(torch.float32).to(torch.bfloat16)
