"""The sections, in their order, and how the time is shared out among them."""

from collections.abc import Sequence
from dataclasses import dataclass

MINUTES = 25.0


@dataclass(frozen=True)
class Section:
    """A part of the run."""

    letter: str
    module: str  # in bench/gpu/sections
    title: str
    limit_s: float  # at most
    reserved_s: float  # what the sections before it leave for it


SECTIONS = (
    Section("a", "build", "Build for this card, with its own torch", 240, 20),
    Section("b", "tests", "Tests of the kernels, then of losses and filters, on CUDA", 330, 60),
    Section("c", "sanitizer", "compute-sanitizer: memcheck, racecheck, synccheck", 240, 30),
    Section("d", "ceilings", "Ceilings of this card", 60, 30),
    Section("e", "correctness", "Every loss against float64, and what else it promises", 180, 60),
    Section("f", "settings", "Chunk size, backend, tile and graph", 240, 120),
    Section("g", "peers", "Beside other libraries", 200, 90),
    Section("h", "fused", "Fused kernels against sweeps", 90, 40),
    Section("i", "prism", "PRISM beside a ResNet-50 step", 100, 45),
    Section("j", "scaling", "Scaling over the number of classes", 90, 45),
)
LETTERS = "".join(section.letter for section in SECTIONS)


def allowed(section: Section, chosen: Sequence[Section], left_s: float) -> float:
    """Seconds that ``section`` may take when ``left_s`` are left for it and what follows it in ``chosen``."""
    later = chosen[chosen.index(section) + 1 :]
    return max(0.0, min(section.limit_s, left_s - sum(other.reserved_s for other in later)))
