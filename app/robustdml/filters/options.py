"""Filters by name, and their settings."""

from dataclasses import dataclass

from robustdml.errors import UnknownNameError, UsageError
from robustdml.options import Options, option
from robustdml_ops.robust import PRISM

# Similarity of `robustdml_ops.robust.PRISM`.
FILTERS = {
    "prism-average": "average",
    "prism-proxy": "proxy",
    "prism-vmf": "vmf",
}
NO_FILTER = "none"
# Judges once, before training, by the features: `robustdml.audit`.
AUDIT = "audit"
KINDS = (NO_FILTER, *FILTERS, AUDIT)
MEMORY_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class FilterOptions(Options, name="filter"):
    """Filter, which keeps samples of probably wrong labels out of the loss."""

    kind: str = option(NO_FILTER, "which", choices=KINDS)
    threshold: str = option(
        "smooth-top-r", "how the threshold is found; otsu needs no noise rate", choices=PRISM.THRESHOLDS
    )
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
    on_trial: bool = option(
        False,
        "where a trial run chooses the averaging, let it choose as well between this filter, the one called audit, and "
        "none",
    )
    preset: str | None = option(None, "paper: the paper's estimator and no extension", choices=("paper",), kind=str)

    def check(self) -> None:
        """Refuse an unknown kind and values out of bounds."""
        if self.kind not in KINDS:
            raise UnknownNameError("filter", self.kind, KINDS)
        if self.memory_dtype not in MEMORY_DTYPES:
            raise UnknownNameError("filter.memory_dtype", self.memory_dtype, MEMORY_DTYPES)
        if self.kind == AUDIT:
            names = [setting.name for setting in self.settings() if setting.name != "kind"]
            self._refuse(names, "which has no settings")
        elif self.kind != NO_FILTER and FILTERS[self.kind] not in PRISM.SIMILARITIES_WITH_BANK:
            self._refuse(["memory_size", "memory_dtype"], "which has no memory")
        super().check()

    def _refuse(self, names: list[str], why: str) -> None:
        defaults = FilterOptions()
        for name in names:
            value = getattr(self, name)
            if value != getattr(defaults, name):
                raise UsageError(f"filter.{name}={value} has no effect on {self.kind}, {why}")
