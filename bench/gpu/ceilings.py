"""How fast the card copies and multiplies: measured in the same run, or by its data sheet, and said which."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import rows


@dataclass(frozen=True)
class Ceilings:
    """Rates that no step exceeds; by default those of an H100 SXM's data sheet and, of bfloat16, what it sustains."""

    bytes_per_s: float = 3.35e12
    bfloat16: float = 750e12  # flops a second
    tf32: float = 375e12
    float32: float = 60e12
    instructions_per_s: float = 29.7e12  # 132 multiprocessors · 128 lanes · 1.755 GHz
    launch_s: float = 10e-6  # of the host, for a kernel or an operation of PyTorch
    source: str = "H100 data sheet"

    @classmethod
    def of(cls, results: Iterable[dict[str, Any]]) -> "Ceilings":
        """Those of section (d), where it has been run."""
        found = {row["name"]: row.get("rate") for row in rows.of_section(results, "d", rows.OK)}
        names = {"copy": "bytes_per_s", "product bfloat16": "bfloat16", "product tf32": "tf32"}
        names |= {"product float32": "float32"}
        rates = {field: found[name] for name, field in names.items() if found.get(name)}
        return cls(**rates, source="section (d)") if rates else cls()

    def products_s(self, flops: float, dtype: str | None) -> float:
        """Floor of so many flops."""
        return flops / (self.float32 if dtype == "float32" else self.bfloat16)
