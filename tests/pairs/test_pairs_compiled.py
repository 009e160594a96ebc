"""The Triton kernels of the sums of pairs, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.pairs.kernels import pair_hinge, pair_lse
from robustdml_ops.pairs.triton import epilogue_launch
from tests.ahead_of_time import ARCHITECTURES, Constant, check


def epilogue(kernel, m, compute, **constants):
    """The whole of it: gradients, candidate weights."""
    vectors = ("S", "candidate_weights", "upstream_positive", "upstream_negative", "lse_positive", "lse_negative")
    vectors += ("sums_positive", "sums_negative", "anchors", "candidates")
    arguments = dict.fromkeys(vectors, compute)
    arguments |= dict.fromkeys(("labels", "candidate_labels", "counts_positive", "counts_negative"), "*i64")
    arguments |= dict.fromkeys(("c", "m", "D", "first", "upstream_positive_stride", "upstream_negative_stride"), "i32")
    arguments |= dict.fromkeys(("alpha", "beta", "base", "epsilon", "near", "resolution"), "fp64")
    arguments |= dict.fromkeys(
        (f"{side}_{what}" for side in ("positive", "negative") for what in ("margin", "offset")), "fp64"
    )
    arguments |= {name: Constant(value) for name, value in ({"ITSELF": True} | constants).items()}
    taken = {name: arguments[name] for name in kernel.arg_names if name in arguments}
    return kernel, taken, lambda architecture: epilogue_launch(m, compute)


KERNELS = {
    "pair lse": epilogue(pair_lse, 60_000, torch.float32, MINING=True, ROW_MAX=False),
    "pair lse, short rows in float64": epilogue(pair_lse, 64, torch.float64, MINING=True, ROW_MAX=True),
    "pair hinge": epilogue(pair_hinge, 60_000, torch.float32, EUCLIDEAN=False),
    "pair hinge, euclidean": epilogue(pair_hinge, 60_000, torch.float32, EUCLIDEAN=True),
    "pair hinge, euclidean in float64": epilogue(pair_hinge, 256, torch.float64, EUCLIDEAN=True),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    check(*KERNELS[name], architecture, tmp_path, tensor_cores=False)
