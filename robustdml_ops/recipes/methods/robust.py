"""Contrastive loss, PRISM's vMF-Sim and Otsu's cut: the best over all kinds of noise, and told of none; the default."""

from dataclasses import replace

from robustdml_ops.recipes.filters.options import FilterOptions
from robustdml_ops.recipes.methods import pairs

# docs/training.md, "The robust method", has what it was chosen from.
METHODS = {
    "robust": replace(
        pairs.METHODS["contrastive"],
        title="Robust",
        filter=FilterOptions("prism-vmf", threshold="otsu", without_copies=True, vmf_epochs=1),
    )
}
