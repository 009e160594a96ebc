"""How far a result may be from the reference's, by what its precision leaves.

Every op here is a function of cosines. A cosine that is computed in a type of precision ε, from rows of D numbers, is
off by up to (D + 8)ε: lengths, division, product and sum. So a result is right where it is within what ``python_ref``
gives, in float64, for cosines that are off by as much: all up, all down, those of positives up and of negatives down,
the reverse, and at random. That takes in whatever amplifies an error (α, a square root near 0) and whatever a rounding
decides (a pair at the edge of mining). What comes after the cosines has an error of its own: a few ε of each term of a
gradient's sum, and what an exponent, α times a cosine, makes of the cosine's; the sizes of those terms are known from
one more run (:class:`Cosines`, ``bounds``).
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor

import python_ref.anchor

Tensors = dict[str, Tensor]
EPSILON = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
DIRECT_BELOW = {torch.float32: 1 / 32, torch.float64: 1 / 256}  # distances that are made of differences
WAYS = ("up", "down", "same up", "same down", "random")


@dataclass
class Cosines:
    """Stands in for the reference's cosines in one run: moved by ``delta``, or with bounds in place of gradients."""

    delta: float = 0.0
    way: str = "none"
    same: list[Tensor] = field(default_factory=list)  # masks of positives, by call
    bounds: bool = False
    compute: torch.dtype = torch.float64
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    calls: int = 0

    def move(self, values: Tensor) -> Tensor:
        """(…) of ±delta, or 0."""
        place, self.calls = self.calls, self.calls + 1
        if self.way in ("up", "down"):
            return torch.full_like(values, self.delta if self.way == "up" else -self.delta)
        if self.way.startswith("same") and place < len(self.same) and self.same[place].shape == values.shape:
            signs = self.same[place].to(values.dtype) * 2 - 1
            return signs * (self.delta if self.way == "same up" else -self.delta)
        signs = torch.randint(0, 2, values.shape, generator=self.generator).to(values.dtype) * 2 - 1
        return signs * self.delta

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """In every module of the reference that has them, and in those of tests that make more of it."""
        originals = {name: getattr(python_ref.anchor, name) for name in ("cosine_similarity", "unit_distance")}
        with contextlib.ExitStack() as stack:
            for module in [m for name, m in sys.modules.items() if name.startswith(("python_ref", "tests."))]:
                for name, original in originals.items():
                    if getattr(module, name, None) is original:
                        stack.enter_context(mock.patch.object(module, name, self._standing_in(name, original)))
            yield

    def _standing_in(self, name: str, original: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda anchors, candidates: _Moved.apply(anchors, candidates, original, self, name == "unit_distance")


class _Moved(torch.autograd.Function):
    """The reference's own function and gradient, of values that are moved; or bounds for the gradient's terms."""

    @staticmethod
    def forward(ctx, anchors, candidates, original, cosines, distances):
        ctx.save_for_backward(anchors, candidates)
        ctx.original, ctx.cosines, ctx.distances, ctx.scale = original, cosines, distances, 1.0
        values = original(anchors, candidates)
        if not cosines.delta:
            return values
        moves = cosines.move(values)
        if distances:
            # d = √(2 − 2s); a small one is made of the difference of the rows, and right within ε of itself.
            direct = values < DIRECT_BELOW[cosines.compute]
            moves = torch.where(direct, moves * values, -moves / values.clamp(min=DIRECT_BELOW[cosines.compute]))
            # The gradient is divided by the distance that was found.
            ctx.scale = torch.where(values == 0, 1, values / (values + moves))
        return values + moves

    @staticmethod
    def backward(ctx, G):
        anchors, candidates = ctx.saved_tensors
        if ctx.cosines.bounds:
            size = G.abs()
            if ctx.distances:
                # The force between near vectors is a difference of products divided by d.
                with torch.no_grad():
                    size = size / ctx.original(anchors, candidates).clamp(min=1e-9)
            return (
                (size.sum(1) * _inverse_lengths(anchors))[:, None].expand_as(anchors),
                (size.sum(0) * _inverse_lengths(candidates))[:, None].expand_as(candidates),
                *[None] * 3,
            )
        with torch.enable_grad():
            leaves = [anchors.detach().requires_grad_(), candidates.detach().requires_grad_()]
            return (*torch.autograd.grad(ctx.original(*leaves), leaves, G * ctx.scale), *[None] * 3)


def _inverse_lengths(rows: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(rows, dim=1)
    return torch.where(norm == 0, 0, 1 / norm)


@dataclass
class Trial:
    """One random call, and what it must give."""

    call: Callable[[Tensors], Tensor | tuple[Tensor, ...]]  # ours, of tensors as they are given
    reference: Callable[[Tensors], Tensor | tuple[Tensor, ...]]  # python_ref's, in float64
    tensors: Tensors  # floating-point inputs
    rows: tuple[str, ...]  # those of which the directions alone matter
    wanted: tuple[str, ...]  # those that the result is differentiated by
    compute: torch.dtype  # in which ours computes
    digits: float  # how many ε a cosine may be off
    same: list[Tensor] = field(default_factory=list)
    steepness: float = 0.0  # of an exponent in a cosine: what an error of a cosine does to a share of a sum
    terms: float = 64.0  # how many ε the terms of a sum may be off
    least: float = 0.0  # what a result may be off at least: a difference of larger numbers, or of a narrower type

    def judge(self) -> None:
        """Raise AssertionError where values or gradients are not the reference's."""
        exact, factors = balanced(self.tensors, self.rows, self.compute)
        generator = torch.Generator().manual_seed(1)
        base, gradients, upstream = _differentiated(self.reference, exact, self.wanted, generator=generator)
        spreads = _spreads(self, exact, upstream, (*base, *gradients))
        least_overflow, sure_overflow = (_beyond(self, gradients, factors, share) for share in (0.5, 2.0))
        given = {name: tensor.detach() for name, tensor in self.tensors.items()}
        ours, slopes, refusal = [], [], ""
        try:
            ours, slopes, _ = _differentiated(self.call, given, self.wanted, upstream)
        except ValueError as error:
            refusal = str(error)
        if refusal:
            assert least_overflow, f"refused: {refusal}"
            assert "is beyond" in refusal and "\n" not in refusal, f"an unclear error: {refusal}"
            return
        assert not sure_overflow, "a gradient beyond its type came without an error"
        epsilon = EPSILON[self.compute]
        for mine, theirs, spread in zip(ours, base, spreads, strict=False):
            allowed = 2 * spread + self.terms * epsilon * theirs.abs()
            close("a result", mine, theirs, allowed + torch.finfo(self.compute).tiny + self.least)
        bounds = _bounds(self, exact, upstream)
        of_gradients = zip(self.wanted, slopes, gradients, spreads[len(base) :], bounds, strict=True)
        for name, mine, theirs, spread, bound in of_gradients:
            assert mine.dtype == given[name].dtype, f"gradient of {name} in {mine.dtype}"
            allowed = _allowed(self, name, theirs, spread, bound.abs(), factors[name])
            close(f"gradient of {name}", mine, theirs * factors[name], allowed)


def balanced(tensors: Tensors, rows: tuple[str, ...], compute: torch.dtype) -> tuple[Tensors, Tensors]:
    """Inputs in float64, rows brought near length 1 by powers of two, and what gradients are multiplied by."""
    exact, factors = {}, {}
    for name, tensor in tensors.items():
        exact[name], factors[name] = tensor.detach().double(), torch.ones((), dtype=torch.float64)
        if name in rows and tensor.numel():
            largest = exact[name].abs().amax(-1, keepdim=True)
            factor = torch.exp2(-torch.frexp(largest).exponent.double()).masked_fill(largest == 0, 1)
            scaled = exact[name] * factor
            length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True) / factor
            # Shorter than the smallest normal number of the type is zero: docs/equations.md.
            exact[name] = scaled.masked_fill(length < torch.finfo(compute).tiny, 0)
            factors[name] = factor
    return exact, factors


@dataclass
class Check:
    """A random call that is not differentiated by rows, or whose result is judged in a way of its own."""

    judge: Callable[[], None]


def _spreads(trial: Trial, exact: Tensors, upstream: list[Tensor], centers: tuple[Tensor, ...]) -> list[Tensor]:
    """How far values and gradients of the reference move when its cosines do."""
    spreads = [torch.zeros_like(center) for center in centers]
    moved = Cosines(trial.digits * EPSILON[trial.compute], same=trial.same, compute=trial.compute)
    for way in WAYS:
        moved.way, moved.calls = way, 0
        with moved.in_place():
            values, slopes, _ = _differentiated(trial.reference, exact, trial.wanted, upstream)
        for spread, value, center in zip(spreads, (*values, *slopes), centers, strict=True):
            torch.maximum(spread, _distance(value, center), out=spread)
    return spreads


def _allowed(trial: Trial, name: str, theirs: Tensor, spread: Tensor, bound: Tensor, factor: Tensor) -> Tensor:
    """What the gradient of ``name`` may be off, as it was given: not of balanced rows."""
    computing, rounding = torch.finfo(trial.compute), torch.finfo(trial.tensors[name].dtype)
    relative = EPSILON[trial.compute] * (trial.terms + 2 * trial.steepness * trial.digits)
    # A term of a sum may underflow before it is divided by the length of a row.
    lost = trial.terms * (1 + trial.steepness) * computing.tiny * factor.clamp(min=1)
    if name not in trial.rows:
        lost = lost + trial.least
    elif spread.numel():
        # Which of several pairs at an edge rounding takes in, the ways that were tried tell of the row as a whole.
        spread = spread.amax(-1, keepdim=True)
    # Rounded to its type; of parts that come from several sweeps each is.
    rounded = rounding.eps * ((theirs * factor).abs() + bound * factor + rounding.tiny)
    allowed = (2 * spread + relative * bound) * factor + lost + rounded
    return torch.where((theirs * factor).abs() > rounding.max / 2, torch.inf, allowed)


def _differentiated(function, given, wanted, upstream=None, generator=None):
    leaves = {name: given[name].detach().requires_grad_() for name in wanted}
    results = function(given | leaves)
    results = (results,) if isinstance(results, Tensor) else tuple(results)
    if upstream is None:
        upstream = [torch.rand(r.shape, generator=generator, dtype=torch.float64) + 0.5 for r in results]
        upstream = [u.float().double() for u in upstream]  # the same number in either type
    if not wanted:
        return [r.detach().double() for r in results], [], upstream
    pairs = [(r, u.to(r.dtype)) for r, u in zip(results, upstream, strict=True) if r.requires_grad]
    if not pairs:  # nothing depends on the inputs
        return [r.detach().double() for r in results], [torch.zeros_like(leaf) for leaf in leaves.values()], upstream
    slopes = torch.autograd.grad(
        [r for r, _ in pairs], list(leaves.values()), [_finite(r, u) for r, u in pairs], allow_unused=True
    )
    slopes = [torch.zeros_like(leaf) if s is None else s for s, leaf in zip(slopes, leaves.values(), strict=True)]
    return [r.detach().double() for r in results], slopes, upstream


def _finite(result: Tensor, upstream: Tensor) -> Tensor:
    """No gradient comes for what is ±∞."""
    return upstream.masked_fill(~torch.isfinite(result.detach()), 0)


def _bounds(trial: Trial, exact: Tensors, upstream: list[Tensor]) -> list[Tensor]:
    if not trial.wanted:
        return []
    with Cosines(bounds=True, same=trial.same, compute=trial.compute).in_place():
        return _differentiated(trial.reference, exact, trial.wanted, upstream)[1]


def _beyond(trial: Trial, gradients: list[Tensor], factors: Tensors, share: float) -> bool:
    """Whether a gradient is beyond this share of its type's largest number.

    In float16 that is no error, but for a loss scaler to find, and surely beyond is nothing.
    """
    for name, gradient in zip(trial.wanted, gradients, strict=True):
        dtype = trial.tensors[name].dtype
        if dtype == torch.float16 and share > 1:
            continue
        if ((gradient * factors[name]).abs() > share * torch.finfo(dtype).max).any():
            return True
    return False


def _distance(value: Tensor, center: Tensor) -> Tensor:
    """|value − center|; 0 of two equal infinities, ∞ of a number and an infinity."""
    return torch.where(value == center, 0.0, (value - center).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)


def close(what: str, mine: Tensor, theirs: Tensor, allowed: Tensor) -> None:
    mine = mine.detach().double()
    assert mine.shape == theirs.shape, f"{what} is of shape {tuple(mine.shape)}, not {tuple(theirs.shape)}"
    distance = torch.where(mine == theirs, 0.0, (mine - theirs).abs())
    wrong = ~(distance <= allowed) | torch.isnan(mine)
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        at = list(place) if place else ""
        raise AssertionError(
            f"{what}{at} is {float(mine[place])!r}, the reference's {float(theirs[place])!r}, allowed "
            f"{float(allowed.expand_as(theirs)[place]):.2e}"
        )
