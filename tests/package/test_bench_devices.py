"""All tensors of a benchmark lie on its device: on "meta", where mixing in a tensor of the CPU raises."""

import pytest

from robustdml_ops.bench.bench_similarity import matrices
from robustdml_ops.bench.device import DEVICE, backends
from robustdml_ops.bench.losses import losses_of
from robustdml_ops.bench.pair_workloads import PairShape, PairWorkload
from robustdml_ops.bench.workloads import Shape, Workload

PROXY = ["proxy-anchor", "proxy-anchor none", "smooth dense", "smooth factored", "adaptive", "class-lse"]
PAIRS = ["ms", "ms none", "contrastive", "memory"]


def on_meta(tensors):
    return {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("name", [*(f"robustdml/{loss}" for loss in PROXY), "torch/cross_entropy"])
def test_steps_over_proxies(name):
    workload = Workload(Shape(4, 20, 8), "meta")
    assert on_meta(workload.contender(name)())
    workload.products(logits="smooth" in name)()


def test_the_peer_has_the_labels_of_its_proxies_there():
    assert Workload(Shape(4, 20, 8), "meta").peer_proxy_nca().proxy_labels.device.type == "meta"


@pytest.mark.parametrize("name", [f"robustdml/{loss}" for loss in PAIRS])
def test_steps_over_pairs(name):
    workload = PairWorkload(PairShape(8, 4, 16 if "memory" in name else 0, wrong=50), "meta")
    assert on_meta(workload.contender(name)())
    workload.products(3, 2)()


def test_inputs_of_the_rest():
    assert on_meta([*matrices(2, 3, 4, "meta"), losses_of(5, "meta")])
    assert losses_of(5).device.type == DEVICE
    assert "eager" in backends()
