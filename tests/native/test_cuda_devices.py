"""Which devices the CUDA part serves, and what a launch that fails says."""

import pytest
import torch

from robustdml_ops import native_module as module


@pytest.mark.parametrize(
    ("architectures", "capability", "serves"),
    [
        ("80-real 90-real", (8, 0), True),
        ("80-real 90-real", (8, 9), True),
        ("80-real 90-real", (7, 5), False),
        ("80-real 90-real", (10, 0), False),
        ("80-real 90-virtual", (10, 0), True),
        ("90a-real", (9, 0), True),
        ("90a-virtual", (10, 0), False),
        ("86-real", (8, 0), False),
        ("100-real 120-virtual", (12, 1), True),
        (None, (9, 0), False),
    ],
)
def test_architectures(architectures, capability, serves):
    reason = module._cuda_unavailable(architectures, capability)
    assert (reason is None) == serves
    if not serves:
        assert "reinstall" in reason


def test_launch_errors_name_the_kernel(native):
    """Without a driver, or with a stream that is none, the launch itself fails."""
    if native.cuda_architectures is None:
        pytest.skip("the native module was built without its CUDA part")
    if torch.cuda.is_available():
        pytest.skip("a GPU is present, and the launch would succeed")
    with pytest.raises(RuntimeError, match="CUDA kernel normalize_rows could not be launched"):
        native.normalize_rows_cuda_f32_f32(0, 0, 0, 8, 8, 0)
