"""The result of one check."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str  # the subject: "threads", "anchor on cpu"
    told: str  # the result in a line
    way_out: str | None = None  # the remedy; None: nothing is to be done
    facts: dict[str, Any] = field(default_factory=dict)  # the result for programs: numbers, names, lists of them
    slows: bool = False  # whether the way out gains speed alone

    @classmethod
    def of(cls, name: str, check: Callable[[], "Finding"]) -> "Finding":
        """The result of ``check``, or that it failed, which must not hide the others."""
        try:
            return check()
        except Exception as error:
            told = f"could not be looked at: {type(error).__name__}: {error}".splitlines()[0]
            return cls(name, told, "report it with this output; the rest was looked at all the same")

    @property
    def severity(self) -> str:
        """``ok``, ``note`` where this machine is slower than it could be, or ``fault``."""
        return "ok" if self.way_out is None else "note" if self.slows else "fault"

    def record(self) -> dict[str, object]:
        """Everything, for programs."""
        fields = {"name": self.name, "severity": self.severity, "told": self.told, "way_out": self.way_out}
        return {**fields, **self.facts}
