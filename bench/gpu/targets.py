"""What must be reached, predicted before it was measured, and what a run says of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from robustdml_ops.bench.suite import markdown, seconds

from ..shapes import Shape
from . import rows
from .ceilings import Ceilings
from .predictions import Prediction, dense, filter_launches, predicted
from .steps import BATCH, LARGE, LARGEST, LOSSES, SMALL

OURS, PML = "robustdml", "pytorch-metric-learning"
RIVALS = ("linear_cross_entropy", "linear_cross_entropy, chunked", "liger-kernel", "cut-cross-entropy")
# Bytes an element of S that others move beside their products, counted by a dispatch mode over all their operations:
# cross-entropy of dense logits in bfloat16; pytorch-metric-learning's Proxy-Anchor in float32, of which autograd keeps
# 41; the same formula compiled, guessed; and its multi-similarity with the miner, half of it lists of pairs.
CROSS_ENTROPY, PEER, KEPT, COMPILED, PEER_OF_PAIRS = 19.0, 265.0, 41.0, 24.0, 445.0
CCE_FLOPS, CCE_SHARE = 8.0, 0.6  # products of cut-cross-entropy in B·C·D, at so much of what the card multiplies
RESNET_S = 25e-3  # of a step: an order of magnitude, 2,600 images a second
CHUNK_GB = 1.0

Told: TypeAlias = tuple[str, str]  # a figure, and the count behind it


@dataclass(frozen=True)
class Found:
    """Rows of a run."""

    rows: Sequence[dict[str, Any]]

    def step_s(self, letter: str, name: str, shape: Shape | None = None, **labels: str) -> float | None:
        """Median of a step at the size asked for; None where it was not measured."""
        return self.fact("step_s", letter, name, shape, **labels)

    def fact(self, fact: str, letter: str, name: str, shape: Shape | None = None, **labels: str) -> float | None:
        """Of the first row with that name, shape and labels."""
        wanted = {"name": name, **({} if shape is None else {"shape": vars(shape)}), **labels}
        for row in rows.of_section(self.rows, letter, rows.OK):
            if "given" not in row and all(row.get(key) == value for key, value in wanted.items()):
                return row.get(fact)
        return None


Outcome: TypeAlias = tuple[str, bool] | None  # a figure, and whether what must be is reached; None: not measured


@dataclass(frozen=True)
class Target:
    """A row of the table."""

    name: str
    must: str
    predict: Callable[[Ceilings], Told]
    outcome: Callable[[Found, Ceilings], Outcome]


def floor_s(shape: Shape, card: Ceilings) -> float:
    """The three products, 6·B·C·D."""
    return 6.0 * shape.B * shape.C * shape.D / card.bfloat16


def beside_floor(card: Ceilings) -> Told:
    step, floor = predicted("proxy-anchor", LARGE), floor_s(LARGE, card)
    return (
        f"{seconds(step.seconds(card))}: {step.seconds(card) / floor:.2f}×",
        f"{step.told(card)}; floor {seconds(floor)}",
    )


def beside_floor_found(found: Found, card: Ceilings) -> Outcome:
    step = found.step_s("g", f"{OURS}, proxy-anchor", LARGE, dtype="bfloat16")
    return step and (f"{seconds(step)}: {step / floor_s(LARGE, card):.2f}×", step <= 2 * floor_s(LARGE, card))


def beside_dense(name: str, bytes_each: float) -> Callable[[Ceilings], Told]:
    """Against one that holds S and moves so much of it."""

    def told(card: Ceilings) -> Told:
        step, other = predicted(name, LARGE), Prediction(dense(bytes_each)(LARGE), None)
        ours, theirs = step.seconds(card), other.seconds(card)
        return f"{seconds(theirs)}: {theirs / ours:.1f}×", f"{bytes_each:.0f} bytes an element of S; {other.told(card)}"

    return told


def ratio(least: float, who: str, ours: str, shape: Shape, **labels: str) -> Callable[[Found, Ceilings], Outcome]:
    """How many times as long another takes, which must be ``least``."""

    def outcome(found: Found, card: Ceilings) -> Outcome:
        theirs = found.step_s("g", who, shape, **labels)
        mine = found.step_s("g", f"{OURS}, {ours}", shape, dtype="bfloat16")
        return (
            None
            if theirs is None or mine is None
            else (f"{seconds(theirs)}: {theirs / mine:.1f}×", theirs >= least * mine)
        )

    return outcome


def memory(card: Ceilings) -> Told:
    return f"{CHUNK_GB / (KEPT * LARGE.B * LARGE.C / 1e9):.3f}", f"a chunk of 1 GB; {KEPT:.0f} bytes an element of S"


def memory_found(found: Found, card: Ceilings) -> Outcome:
    fact = lambda name, dtype: found.fact("beyond_bytes", "g", name, LARGE, dtype=dtype)  # noqa: E731
    mine, theirs = fact(f"{OURS}, proxy-anchor", "amp"), fact(f"{PML}, proxy-anchor", "amp")
    return None if mine is None or theirs is None else (f"{mine / theirs:.3f}", 10 * mine <= theirs)


def cut(card: Ceilings) -> Told:
    ours = predicted("proxy-nca", LARGE).seconds(card)
    theirs = CCE_FLOPS * LARGE.B * LARGE.C * LARGE.D / (CCE_SHARE * card.bfloat16)
    return f"{seconds(theirs)}: {theirs / ours:.1f}×", f"{CCE_FLOPS:.0f}·B·C·D at {CCE_SHARE:.0%} of the products' rate"


def liger(card: Ceilings) -> Told:
    """It takes next_pow2(⌈B/⌈C/D⌉⌉) samples at a time, which is one here."""
    ours, theirs = predicted("proxy-nca", LARGE).seconds(card), LARGE.B * 8.0 * LARGE.C * LARGE.D / card.bytes_per_s
    return f"{seconds(theirs)}: {theirs / ours:.0f}×", "a chunk holds one sample, and passes four times over P"


def over_classes(card: Ceilings) -> Told:
    step = predicted("proxy-nca", LARGE)
    return seconds(step.seconds(card)), step.told(card)


def over_classes_found(found: Found, card: Ceilings) -> Outcome:
    """Against the fastest of those that were measured."""
    step = found.step_s("g", f"{OURS}, proxy-nca", LARGE)
    others = [found.step_s("g", name, LARGE, variant=str(LARGE)) for name in RIVALS]
    best = min((other for other in others if other is not None), default=None)
    if step is None or best is None:
        return None
    return f"{seconds(step)}: {best / step:.1f}× the best", step < best


def small(card: Ceilings) -> Told:
    step, other = predicted("proxy-nca", SMALL), Prediction(dense(CROSS_ENTROPY)(SMALL), 8)
    return f"{seconds(step.seconds(card))}; cross-entropy {seconds(other.seconds(card))}", step.told(card)


def small_found(found: Found, card: Ceilings) -> Outcome:
    mine = found.step_s("g", f"{OURS}, proxy-nca", SMALL)
    theirs = found.step_s("g", "cross_entropy(linear)", SMALL, variant=str(SMALL))
    if mine is None or theirs is None:
        return None
    return f"{seconds(mine)}; cross-entropy {seconds(theirs)}", mine < theirs


def verdicts(card: Ceilings) -> Told:
    average, vmf = filter_launches("average", scores=True), filter_launches("vmf", scores=True)
    if average is None or vmf is None:
        return "not counted", "the tests are not at hand"
    return f"{vmf / average:.2f}×", f"{vmf} launches for {average}; both are bound by the host"


def verdicts_found(found: Found, card: Ceilings) -> Outcome:
    vmf, average = (found.step_s("i", "log_p_clean", variant=variant) for variant in ("vmf", "average"))
    return None if vmf is None or average is None else (f"{vmf / average:.3f}×", vmf <= 1.02 * average)


def filtered(card: Ceilings) -> Told:
    count = filter_launches("vmf", scores=False)
    if count is None:
        return "not counted", "the tests are not at hand"
    host = count * card.launch_s
    return (
        "+1 %",
        f"{count} launches: {seconds(host)} of host, hidden where the network keeps the card busy; {seconds(RESNET_S)}",
    )


def filtered_found(found: Found, card: Ceilings) -> Outcome:
    times = found.fact("ratio", "i", "ResNet-50")
    return times and (f"{100 * (times - 1):+.1f} %", times <= 1.01)


def pairs(card: Ceilings) -> Told:
    step, theirs = predicted("multi-similarity", BATCH), PEER_OF_PAIRS * BATCH.B**2 / card.bytes_per_s
    ours = step.seconds(card)
    return f"{seconds(ours)}, the peer {seconds(theirs)}: {theirs / ours:.0f}×", step.told(card)


def sorted_losses(card: Ceilings) -> Told:
    step = predicted("otsu", LOSSES)
    return seconds(step.device_s(card)), f"one kernel: {len(bin(LOSSES.B - 1)) - 2} · 11 / 2 stages of 150 ns"


def sorted_losses_found(found: Found, card: Ceilings) -> Outcome:
    busy, count = (found.fact(fact, "g", f"{OURS}, otsu", LOSSES) for fact in ("busy_s", "launches"))
    return None if busy is None or count is None else (f"{seconds(busy)}, {count:.0f} launches", busy <= 20e-6)


def largest(card: Ceilings) -> Told:
    step = predicted("proxy-anchor", LARGEST)
    held = 2 * 2 * LARGEST.C * LARGEST.D / 1e9
    return (
        f"{seconds(step.seconds(card))}, {held + 2 * CHUNK_GB:.0f} GB",
        f"proxies and gradient {held:.0f} GB; {step.told(card)}",
    )


def largest_found(found: Found, card: Ceilings) -> Outcome:
    step = found.step_s("j", "proxy-anchor", LARGEST)
    return step and (seconds(step), True)


TARGETS = (
    Target("Proxy-Anchor, loss and both gradients", "≤ 2× the floor of 6·B·C·D; goal 1.3×", beside_floor,
           beside_floor_found),
    Target("… against pytorch-metric-learning (AMP)", "≥ 10×", beside_dense("proxy-anchor", PEER),
           ratio(10, f"{PML}, proxy-anchor", "proxy-anchor", LARGE)),
    Target("… against torch.compile of the dense form", "faster", beside_dense("proxy-anchor", COMPILED),
           ratio(1, "dense PyTorch, proxy-anchor", "proxy-anchor", LARGE, variant=f"{LARGE}, compiled")),
    Target("… memory beside pytorch-metric-learning's", "≤ 0.1", memory, memory_found),
    Target("class LSE, forward and backward", "faster than each below; goal 1.3×", over_classes, over_classes_found),
    Target("… against linear_cross_entropy", "faster", beside_dense("proxy-nca", CROSS_ENTROPY),
           ratio(1, "linear_cross_entropy", "proxy-nca", LARGE)),
    Target("… against liger-kernel", "faster", liger, ratio(1, "liger-kernel", "proxy-nca", LARGE)),
    Target("… against cut-cross-entropy", "faster", cut, ratio(1, "cut-cross-entropy", "proxy-nca", LARGE)),
    Target(f"{SMALL}, Proxy-NCA", "faster than cross_entropy(linear); goal 0.25 ms", small, small_found),
    Target("P_clean by vMF-Sim against AvgSim", "≤ 1.02×", verdicts, verdicts_found),
    Target("PRISM-vMF beside ResNet-50, 224², batch 64", "≤ +1 %", filtered, filtered_found),
    Target("Otsu's cut, n=1024", "one launch ≤ 20 µs", sorted_losses, sorted_losses_found),
    Target("multi-similarity, B=8192, against pytorch-metric-learning", "≥ 5×", pairs,
           ratio(5, f"{PML}, multi-similarity", "multi-similarity", BATCH)),
    Target("C=10⁷, D=512, B=1024", "runs on one card", largest, largest_found),
)  # fmt: skip
HEADER = ("B=1024, C=10⁶, D=512, bfloat16, unless said", "must reach", "predicted", "the count behind it", "measured")


def table(found: Found, card: Ceilings) -> str:
    """Predictions by the data sheet, as they stood before, each beside its outcome over the ceilings of ``card``."""
    lines = []
    for target in TARGETS:
        outcome = target.outcome(found, card)
        told = "" if outcome is None else f"{outcome[0]}, {'reached' if outcome[1] else 'missed'}"
        lines.append((target.name, target.must, *target.predict(Ceilings()), told))
    return markdown(HEADER, lines)


def predictions() -> str:
    """By the data sheet, before any measurement."""
    return table(Found([]), Ceilings())
