"""Steps can be replayed as CUDA graphs: each has the same launches with the same numbers, and reads nothing back."""

import pytest
import torch

from robustdml_ops.robust import PRISM
from tests.every_call import EVERY, LOSSES, first
from tests.launches import counted
from tests.package.test_every_call import SEQUENTIAL

pytestmark = pytest.mark.usefixtures("as_in_training")
META = torch.device("meta")
# In plain PyTorch near pairs are listed one by one, and the host waits for their number.
WAITING = {("ContrastiveLoss", "eager")}
STEPS = [
    (name, backend)
    for name in sorted(EVERY.keys() - set(SEQUENTIAL))
    for backend in ("triton", "eager")
    if (name, backend) not in WAITING
]
PRISMS = {
    "average": {"similarity": "average", "noise_rate": 0.5},
    "average, per class, own copies": {"threshold": "per-class", "num_samples": 500, "noise_rate": 0.5},
    "vmf": {"similarity": "vmf", "noise_rate": 0.5, "vmf_start": 2},
    "vmf, otsu, own copies": {"similarity": "vmf", "threshold": "otsu", "vmf_start": 2, "num_samples": 500},
    "vmf, cautious": {"similarity": "vmf", "threshold": "cautious", "vmf_start": 2},
    "vmf, top-r": {"similarity": "vmf", "noise_rate": 0.5, "threshold": "top-r", "vmf_start": 2},
}


def sequences(step, times):
    found = []
    for _ in range(times):
        with counted() as launches:
            step()
        assert launches.sequence
        found.append(launches.sequence)
    return found


def assert_all_the_same(found):
    for number, sequence in enumerate(found[1:], start=1):
        for place, (one, other) in enumerate(zip(found[0], sequence, strict=False)):
            assert one == other, f"launch {place} of step {number} differs"
        assert len(sequence) == len(found[0])


@pytest.mark.parametrize(("name", "backend"), STEPS)
def test_a_step_is_the_same_every_time(name, backend, monkeypatch):
    monkeypatch.setenv("ROBUSTDML_BACKEND", backend)
    call = EVERY[name]
    function = call.make().to(META) if name in LOSSES else call.make()
    inputs = call.on(META)
    for key in call.differentiable:
        inputs[key].requires_grad_()

    def step():
        result = first(call(function, **inputs))
        if result.requires_grad:
            result.sum().backward()

    assert_all_the_same(sequences(step, 3)[1:])  # in the first one gradients are new


@pytest.mark.parametrize("name", PRISMS)
def test_a_step_of_the_filter_is_the_same_every_time(name):
    """The second step starts vMF-Sim."""
    own = PRISMS[name].get("num_samples")
    prism = PRISM(40, 16, memory_size=100, **PRISMS[name]).to(META)
    X, y = torch.empty(32, 16, device=META), torch.zeros(32, dtype=torch.int64, device=META)
    ids = torch.zeros(32, dtype=torch.int64, device=META) if own else None
    assert_all_the_same(sequences(lambda: prism.enqueue(X, y, prism(X, y, ids).keep, ids), 4))


@pytest.mark.parametrize("name", PRISMS)
def test_a_captured_filter_goes_on_as_an_eager_one(name):
    """Three steps before the capture, and two later the start of vMF-Sim."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    own = PRISMS[name].get("num_samples")
    settings = PRISMS[name] | ({"vmf_start": 5} if "vmf" in name else {})
    replayed, eager = (PRISM(40, 16, memory_size=100, **settings).cuda() for _ in range(2))
    X, y = torch.empty(32, 16, device="cuda"), torch.zeros(32, dtype=torch.int64, device="cuda")
    ids = torch.zeros_like(y) if own else None

    def fill(seed):
        random = torch.Generator("cuda").manual_seed(seed)
        X.normal_(generator=random)
        y.random_(0, 40, generator=random)
        if ids is not None:
            ids.random_(0, own, generator=random)

    def step(prism):
        result = prism(X, y, ids)
        prism.enqueue(X, y, result.keep, ids)
        return result

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # real steps: they warm up
        for seed in range(3):
            fill(seed)
            step(replayed), step(eager)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(replayed)
    for seed in range(3, 9):
        fill(seed)
        graph.replay()
        expected = step(eager)
        assert torch.equal(result.keep, expected.keep)
        assert torch.equal(result.log_p_clean, expected.log_p_clean)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(replayed.state_dict()[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
