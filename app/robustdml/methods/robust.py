"""The default: made to do no harm where nobody knows how many labels are wrong or how good the features are.

The contrastive loss from the features' own principal axes, PRISM's vMF-Sim with a cut that steps back where it cannot
tell, and an average with the start.
"""

from dataclasses import replace

from robustdml.filters.options import FilterOptions
from robustdml.methods import pairs

# docs/labels.md has what it was chosen from.
METHODS = {
    "robust": replace(
        pairs.METHODS["contrastive"],
        title="Robust",
        filter=FilterOptions("prism-vmf", threshold="cautious", without_copies=True, vmf_epochs=1, on_trial=True),
        start="principal",
        averages=True,
    )
}
