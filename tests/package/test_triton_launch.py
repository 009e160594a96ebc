"""Held kernels: each kind of arguments has its own, and what is not known goes through Triton."""

import ast
import inspect
from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")
from triton import knobs  # noqa: E402
from triton.compiler import CompiledKernel  # noqa: E402
from triton.runtime import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from robustdml_ops.backends import triton_device, triton_launch  # noqa: E402
from robustdml_ops.backends.triton_launch import Launch, kind_of  # noqa: E402
from robustdml_ops.engine.rows.step_kernels import add_parts  # noqa: E402
from robustdml_ops.losses import ProxyAnchorLoss  # noqa: E402
from tests.ahead_of_time import StubDriver, compiling  # noqa: E402

MEMORY = torch.zeros(64)
ALIGNED, APART = MEMORY[:32], MEMORY[1:33]
OPTIONS = {"BLOCK": 64, "num_warps": 4, "enable_fp_fusion": True}


class LaunchingDriver(StubDriver):
    """Loads no kernel, and notes what is launched."""

    def __init__(self):
        super().__init__(90)
        self.launches = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
            load_binary=lambda *_: (None, 2, 32, 0, 1024),
            unload_module=lambda *_: None,
        )

    def launcher_cls(self, src, metadata):
        return lambda *arguments: self.launches.append((src, arguments))


@pytest.fixture
def stub():
    active = LaunchingDriver()
    driver.set_active(active)
    yield active
    driver.set_active(None)


@pytest.fixture
def kernel():
    """One that has not been compiled yet."""
    return JITFunction(add_parts.fn)


def parts_launch(kernel):
    return Launch(kernel, (3,), ("parts", "total", "n"), OPTIONS)


def test_a_launch_has_the_arguments_of_the_kernel(stub, kernel):
    launch, total = parts_launch(kernel), torch.zeros(())
    launch(ALIGNED, total, 7)
    ((_, arguments),) = stub.launches
    grid, stream, function, _, *hooks = arguments[:3], *arguments[3:9]
    assert (grid, stream, function, hooks) == ((3, 1, 1), 0, 2, [None, None, None])
    assert arguments[9] is ALIGNED
    assert arguments[10] is total
    assert arguments[11:] == (7, 64)


def test_a_kernel_for_each_kind_of_arguments(stub, kernel):
    launch, total = parts_launch(kernel), torch.zeros(())
    calls = [(ALIGNED, 7), (APART, 7), (ALIGNED, 16), (ALIGNED, 1), (ALIGNED, 2**40), (ALIGNED, 9), (APART, 5)]
    for parts, n in calls:
        launch(parts, total, n)
    *first, sixth, seventh = [source for source, _ in stub.launches]
    assert len({source.hash() for source in first}) == len(first) == 5
    assert sixth is first[0]
    assert seventh is first[1]
    assert [arguments[11] for _, arguments in stub.launches] == [n for _, n in calls]


def test_a_number_that_is_not_specialised_has_one_kernel(stub):
    launch = parts_launch(JITFunction(add_parts.fn, do_not_specialize=["n"]))
    for n in (7, 16, 1):
        launch(ALIGNED, MEMORY, n)
    assert len({source.hash() for source, _ in stub.launches}) == 1


def test_the_kernel_is_the_one_that_triton_would_launch(stub, kernel):
    launch, total = parts_launch(kernel), torch.zeros(())
    for parts in (ALIGNED, APART):
        launch(parts, total, 7)
        kernel[(3,)](parts, total, 7, **OPTIONS)
    sources = [source for source, _ in stub.launches]
    assert sources[0] is sources[1]
    assert sources[2] is sources[3]
    ours, theirs = (arguments for _, arguments in stub.launches[:2])
    assert all(one is other for one, other in zip(ours[9:], theirs[9:], strict=True))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ALIGNED, APART),
        (ALIGNED, ALIGNED.double()),
        (ALIGNED, None),
        (1, 2),
        (16, 17),
        (3, 2**31),
        (2**31, 2**63),
        (-(2**31), -(2**31) - 1),
    ],
)
def test_kinds_that_triton_tells_apart(one, other):
    assert kind_of(one) != kind_of(other)


def test_kinds_that_triton_takes_for_one():
    assert kind_of(3) == kind_of(5)
    assert kind_of(32) == kind_of(48)
    assert kind_of(1, plain=True) == kind_of(16, plain=True) == kind_of(7, plain=True)
    assert kind_of(ALIGNED) == kind_of(MEMORY[4:])


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="a tensor, None or an integer"):
        kind_of(0.5)


def note(monkeypatch):
    """What reaches Triton's own launch."""
    seen = []

    def run(kernel, *arguments, grid, warmup, **named):
        seen.append((grid, warmup, named))

    monkeypatch.setattr(JITFunction, "run", run)
    return seen


def test_an_unknown_version_goes_through_triton(stub, kernel, monkeypatch):
    monkeypatch.setattr(triton_device, "_version", lambda: (4, 0))
    launch, seen = parts_launch(kernel), note(monkeypatch)
    launch(ALIGNED, MEMORY, 7)
    ((grid, warmup, named),) = seen
    assert (grid, warmup, named["n"], named["BLOCK"]) == ((3,), False, 7, 64)
    assert not stub.launches


def test_a_function_of_the_interpreter_is_called(stub):
    seen = []

    class Interpreted:
        def __getitem__(self, grid):
            return lambda **named: seen.append((grid, named["n"]))

    parts_launch(Interpreted())(ALIGNED, MEMORY, 5)
    assert seen == [((3,), 5)]


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_sees_the_launch(stub, kernel, monkeypatch, hook):
    launch, seen = parts_launch(kernel), note(monkeypatch)
    chain = getattr(knobs.runtime, hook)
    chain.add(print)
    try:
        launch(ALIGNED, MEMORY, 7)
    finally:
        chain.remove(print)
    assert [warmup for _, warmup, _ in seen] == [False]
    assert not stub.launches


def test_a_hook_before_the_kernel_sees_the_launch(stub, kernel, monkeypatch):
    kernel.add_pre_run_hook(lambda *_, **__: None)
    launch, seen = parts_launch(kernel), note(monkeypatch)
    launch(ALIGNED, MEMORY, 7)
    assert [warmup for _, warmup, _ in seen] == [False]


def test_triton_launches_a_compiled_kernel_with_these_arguments():
    """The order in which a known version calls ``CompiledKernel.run``."""
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(JITFunction))))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kernel.run"
    ]
    expected = ["grid_0", "grid_1", "grid_2", "stream", "kernel.function", "kernel.packed_metadata", "launch_metadata"]
    expected += ["knobs.runtime.launch_enter_hook", "knobs.runtime.launch_exit_hook", "*bound_args.values()"]
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if version in triton_launch.KNOWN:
        assert [ast.unparse(argument) for argument in calls[0].args] == expected
        assert isinstance(CompiledKernel.run, property)


def test_checks_of_labels_are_compiled_in():
    loss = ProxyAnchorLoss(64, 16).to("meta")
    X, y = torch.empty(8, 16, device="meta", requires_grad=True), torch.zeros(8, dtype=torch.int64, device="meta")
    with compiling(90) as compiled:
        loss(X, y)
    code = dict(compiled)["prepare_samples"].asm["ptx"]
    assert "a label is outside" in bytes_of(code)
    assert "__assertfail" in code
    assert "overflow" not in bytes_of(code)


def bytes_of(code):
    """Strings that the code holds as lists of numbers."""
    found = []
    for line in code.splitlines():
        if ".b8" in line and "{" in line:
            numbers = line[line.index("{") + 1 : line.index("}")].split(",")
            found.append(bytes(int(number) % 256 for number in numbers).decode(errors="replace"))
    return " ".join(found)


def test_scratch_memory_is_torchs_and_the_caller_keeps_an_allocator():
    from triton.runtime import _allocation

    before, seen = _allocation._allocator.get(), []
    triton_launch.launch_with_scratch(lambda *values: seen.append((values, _allocation._allocator.get())), 1, 2)
    assert seen == [((1, 2), triton_launch._scratch)]
    assert _allocation._allocator.get() is before
