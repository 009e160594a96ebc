"""The backends on the CPU whose sweeps take an optimiser's step."""

import pytest

from robustdml_ops.backends import native_module

BACKENDS = [
    "eager",
    pytest.param("native", marks=pytest.mark.skipif(native_module.library is None, reason="no module")),
]
