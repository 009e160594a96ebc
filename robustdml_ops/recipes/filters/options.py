"""Filters by name, and their settings."""

from dataclasses import dataclass

from robustdml_ops.recipes.errors import UnknownNameError, UsageError
from robustdml_ops.recipes.options import Options, option
from robustdml_ops.robust.prism_settings import PRESETS, THRESHOLDS, WITH_BANK

# Similarity of `robustdml_ops.robust.PRISM`; the last two are the paper's ablations.
FILTERS = {
    "prism-average": "average",
    "prism-proxy": "proxy",
    "prism-vmf": "vmf",
    "prism-batch-positive": "batch-positive",
    "prism-memory-positive": "memory-positive",
}
NO_FILTER = "none"
MEMORY_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class FilterOptions(Options, name="filter"):
    """Filter, which keeps samples of probably wrong labels out of the loss."""

    kind: str = option(NO_FILTER, "which", choices=(NO_FILTER, *FILTERS))
    threshold: str = option("smooth-top-r", "how the threshold is found; otsu needs no noise rate", choices=THRESHOLDS)
    fixed_threshold: float | None = option(None, "P of the threshold called fixed", kind=float)
    window: int = option(30, "batches of smooth-top-r, or scores kept per class of per-class and otsu")
    memory_size: int | None = option(None, "rows of the memory (default: the training samples)", kind=int)
    memory_dtype: str = option(
        "float32", "type of the rows of the memory; bfloat16 halves what they take", choices=MEMORY_DTYPES
    )
    warmup: int = option(
        0, "epochs in which all samples are judged and kept, for a network that starts untrained", at_least=0
    )
    vmf_epochs: int = option(
        3, "prism-vmf: epochs in which average similarity stands in, while the memory fills", at_least=0
    )
    without_copies: bool = option(False, "judge a sample without its own past copies in the memory, an extension")
    preset: str | None = option(
        None, "paper: the paper's estimator and no extension; authors: as their code", choices=PRESETS, kind=str
    )

    def check(self) -> None:
        """Refuse an unknown kind and values out of bounds.

        Raises
        ------
        UsageError
            Naming the setting, its value and what is expected.
        """
        if self.kind not in (NO_FILTER, *FILTERS):
            raise UnknownNameError("filter", self.kind, (NO_FILTER, *FILTERS))
        if self.memory_dtype not in MEMORY_DTYPES:
            raise UnknownNameError("filter.memory_dtype", self.memory_dtype, MEMORY_DTYPES)
        if self.kind != NO_FILTER and FILTERS[self.kind] not in WITH_BANK:
            self._refuse_memory()
        super().check()

    def _refuse_memory(self) -> None:
        defaults = FilterOptions()
        for name in ("memory_size", "memory_dtype"):
            value = getattr(self, name)
            if value != getattr(defaults, name):
                raise UsageError(f"filter.{name}={value} has no effect on {self.kind}, which has no memory")
