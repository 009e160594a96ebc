"""Filters by name, and their settings."""

from dataclasses import dataclass

from robustdml.errors import UsageError
from robustdml.options import Options, option
from robustdml_ops.robust import PRISM

# Similarity of `robustdml_ops.robust.PRISM`.
FILTERS = {"prism-average": "average", "prism-proxy": "proxy", "prism-vmf": "vmf"}
NO_FILTER = "none"
# Judges once, before training, by the features: `robustdml.audit`.
AUDIT = "audit"
# Judges once, halfway: `robustdml_ops.robust.OwnClassFilter`.
OWN_CLASS = "own-class"
KINDS = (NO_FILTER, *FILTERS, AUDIT, OWN_CLASS)
MEMORY_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class FilterOptions(Options, name="filter"):
    """Filter, which keeps samples of probably wrong labels out of the loss."""

    kind: str = option(NO_FILTER, "which (default: none; robust chooses; own-class is of many-classes)", choices=KINDS)
    threshold: str = option(
        "smooth-top-r",
        "how the threshold is found (default: smooth-top-r; robust: cautious); otsu and cautious, with prism-vmf, need "
        "no noise rate",
        choices=PRISM.THRESHOLDS,
    )
    fixed_threshold: float | None = option(None, "P of the threshold called fixed")
    window: int = option(
        30, "batches of smooth-top-r, or scores kept per class of per-class, otsu and cautious (default: 30)"
    )
    memory_size: int | None = option(None, "rows of the memory (default: the training samples)")
    memory_dtype: str = option(
        "float32", "type of the rows of the memory; bfloat16 halves what they take", choices=MEMORY_DTYPES
    )
    vmf_epochs: int = option(
        3,
        "prism-vmf: epochs in which average similarity stands in, while the memory fills (default: 3; robust: 1)",
        at_least=0,
    )
    without_copies: bool = option(False, "judge a sample without its own past copies in the memory, an extension")
    on_trial: bool = option(
        False,
        "where trials choose the averaging, audit replaces this filter, unless this one rejects much that audit keeps; "
        "of few classes trials choose between audit and none (default: for robust)",
    )
    preset: str | None = option(None, "paper: the paper's estimator and no extension", choices=("paper",))

    def check(self) -> None:
        """Refuse an unknown kind and values out of bounds."""
        super().check()
        if self.kind in (AUDIT, OWN_CLASS):
            self._refuse([name for name in self.as_dict() if name != "kind"], "which has no settings")
        elif self.kind != NO_FILTER and FILTERS[self.kind] not in PRISM.SIMILARITIES_WITH_BANK:
            self._refuse(["memory_size", "memory_dtype"], "which has no memory")

    def _refuse(self, names: list[str], why: str) -> None:
        for name in names:
            if (value := getattr(self, name)) != getattr(FilterOptions(), name):
                raise UsageError(f"filter.{name}={value} has no effect on {self.kind}, {why}")
