"""The combination that is best over all kinds of noise and need not be told how much of it there is: the default."""

from dataclasses import replace

from robustdml_ops.recipes.filter_options import FilterOptions
from robustdml_ops.recipes.methods.pairs import PAIR_METHODS

# docs/training.md, "The robust method", has what it was chosen from.
ROBUST_METHODS = {
    "robust": replace(
        PAIR_METHODS["contrastive"],
        title="Robust: contrastive, PRISM vMF-Sim, Otsu's cut",
        filter=FilterOptions("prism-vmf", threshold="otsu", without_copies=True, vmf_epochs=1),
    )
}
