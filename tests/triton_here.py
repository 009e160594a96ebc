"""Where Triton's kernels are tried: on the GPU, or in Triton's interpreter on the CPU.

The interpreter must be chosen before Triton is imported: ``tests/package/test_interpreter.py`` starts the files that
import this one that way.
"""

import os

import pytest
import torch

pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU: test_interpreter.py runs these tests in the interpreter", allow_module_level=True)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter runs one program after the other")
MARKS = [
    # Older interpreters meet newer numpy's deprecations.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:triton.runtime.interpreter"),
    # A row of the anchor log-sum-exp whose sum overflows is made again, shifted; numpy tells of the first sum.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
    pytest.mark.usefixtures("exact_products"),
]
