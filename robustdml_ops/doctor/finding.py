"""What the doctor says of one thing."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str  # What it is
    told: str  # What was found, in a line
    way_out: str | None = None  # What to do about it; None: nothing is to be done
    facts: dict[str, Any] = field(default_factory=dict)  # The same for programs: numbers, names, lists of them

    @classmethod
    def of_failure(cls, name: str, error: Exception) -> "Finding":
        """Tell that something could not be looked at, rather than look at nothing else."""
        told = f"could not be looked at: {type(error).__name__}: {error}".splitlines()[0]
        return cls(name, told, "report it with this output; the rest was looked at all the same")

    @property
    def well(self) -> bool:
        """Whether nothing is to be done."""
        return self.way_out is None
