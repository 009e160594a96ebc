"""Which devices the CUDA part serves, and the error of a launch that fails."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from robustdml_ops.backends import native_module as module
from robustdml_ops.doctor import machine


@pytest.mark.parametrize(
    ("architectures", "capability", "built_by", "driver", "named"),
    [
        ("80-real 90-real", (8, 0), 13000, 13000, ()),
        ("80-real 90-real", (8, 9), 13000, 13000, ()),
        ("80-real 90-real", (7, 5), 13000, 13000, ("reinstall",)),
        ("80-real 90-real", (10, 0), 13000, 13000, ("reinstall",)),
        ("80-real 90-virtual", (10, 0), 13000, 13000, ()),
        ("90a-real", (9, 0), 13000, 13000, ()),
        ("90a-virtual", (10, 0), 13000, 13000, ("reinstall",)),
        ("86-real", (8, 0), 13000, 13000, ("reinstall",)),
        ("100-real 120-virtual", (12, 1), 13000, 13000, ()),
        ("90-virtual", (9, 0), 13000, 13000, ()),
        ("90-real", (9, 0), 13010, 13000, ()),  # a driver of the same major version
        ("90-real", (9, 0), 12080, 13000, ()),  # a later driver
        ("90-real 120-virtual", (9, 0), 13000, 12040, ("13.0", "12.4", "driver")),
        ("90-real", (9, 0), 13000, 0, ("13.0", "0.0", "driver")),
        ("80-virtual", (9, 0), 13010, 13000, ("13.1", "13.0", "driver", "TORCH_CUDA_ARCH_LIST")),
        ("80-virtual", (9, 0), 13010, 13010, ()),
        ("80-virtual 90-real", (9, 0), 13010, 13000, ()),
    ],
)
def test_architectures_and_drivers(architectures, capability, built_by, driver, named):
    reason = module._cuda_unavailable(architectures, capability, built_by, driver)
    assert (reason is None) == (not named)
    assert all(word in reason for word in named)


def test_the_module_tells_both_versions(emulated, monkeypatch):
    assert emulated.cuda_runtime_version == emulated.cuda_driver_version() == 13000
    stub = SimpleNamespace(cuda_architectures="90-real", cuda_runtime_version=13000, cuda_driver_version=lambda: 12040)
    monkeypatch.setattr(module, "library", stub)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert "CUDA 12.4" in module.unavailable(torch.device("cuda"), torch.float32)
    stub.cuda_driver_version = lambda: 13000
    assert module.unavailable(torch.device("cuda"), torch.float32) is None


def test_a_module_without_its_cuda_part_says_so(monkeypatch):
    monkeypatch.setattr(module.library, "cuda_architectures", None)
    monkeypatch.setattr(module.library, "cuda_left_out", "no nvcc was found", raising=False)
    reason = module.unavailable(torch.device("cuda"), torch.float32)
    assert "ROBUSTDML_CUDA=ON" in reason
    assert "no nvcc was found" in reason
    assert "no nvcc was found" in machine.native().told


def test_a_launch_goes_to_the_device_of_its_tensors(emulated, monkeypatch):
    """torch's current device is not that of the module's own runtime."""
    entered = []

    @contextlib.contextmanager
    def guard(device):
        entered.append(device.index)
        yield

    monkeypatch.setattr(module, "library", emulated)
    monkeypatch.setattr(torch.cuda, "device", guard)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: entered[-1])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=device.index + 1))
    P, U, inverse_norm = torch.full((3, 4), 2.0), torch.empty(3, 4), torch.empty(3)
    addresses = (P.data_ptr(), U.data_ptr(), inverse_norm.data_ptr())
    for index in (1, 0, 1):
        with module.current_stream(torch.device("cuda", index)) as stream:
            emulated.normalize_rows_cuda_f32_f32(*addresses, 3, 4, stream)
        assert torch.equal(U, torch.full((3, 4), 0.5))
        U.zero_()
    with pytest.raises(RuntimeError, match="the stream is of another device"):
        emulated.normalize_rows_cuda_f32_f32(*addresses, 3, 4, 1)
    with pytest.raises(RuntimeError, match="CUDA device 7 could not be made current"):
        emulated.set_cuda_device(7)
    emulated.set_cuda_device(0)


def test_launch_errors_name_the_kernel(native):
    """Without a driver, or with a stream that is none, the launch itself fails."""
    if native.cuda_architectures is None:
        pytest.skip("the native module was built without its CUDA part")
    if torch.cuda.is_available():
        pytest.skip("a GPU is present, and the launch would succeed")
    with pytest.raises(RuntimeError, match="CUDA kernel normalize_rows could not be launched"):
        native.normalize_rows_cuda_f32_f32(0, 0, 0, 8, 8, 0)
