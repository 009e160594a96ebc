"""Versions, devices, and what the native module was built for against what is here."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

import robustdml_ops
from robustdml_ops import native_module
from robustdml_ops.doctor.finding import Finding

# What an op or a recipe may use, beside PyTorch.
_PACKAGES = ("numpy", "triton", "pytorch-metric-learning")


def versions() -> Finding:
    """Of Python, this package, PyTorch and what both may use."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "robustdml_ops": robustdml_ops.__version__,
        "torch": str(torch.__version__),
    }
    found.update((name, _version(name)) for name in _PACKAGES)
    told = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    return Finding("versions", f"{told}; {platform.platform()}", facts={**found, "platform": platform.platform()})


def devices() -> Finding:
    """Processors and CUDA devices."""
    cards = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    built = torch.version.cuda
    told = f"{platform.machine()} CPU; " + (", ".join(cards) if cards else "no CUDA device")
    facts = {"cuda_devices": cards, "torch_cuda": built}
    if built is not None and not cards and torch.cuda.device_count() > 0:
        way_out = "PyTorch sees a card that it can't use: see what `nvidia-smi` and torch.cuda.init() say of the driver"
        return Finding("devices", told, way_out, facts)
    return Finding("devices", told, facts=facts)


def native() -> Finding:
    """The native module: whether it is there, and for which cards and driver it was built."""
    reason = native_module.unavailable(torch.device("cpu"), torch.float32)
    if reason is not None:
        return Finding(
            "native module",
            reason,
            "install a wheel that has it, or reinstall where a C++17 compiler is found: the CPU takes several times as "
            "long without it",
            {"built": False},
        )
    library = native_module.library
    architectures = library.cuda_architectures
    facts = {"built": True, "cuda_architectures": architectures, "file": library.__file__}
    told = "for the CPU alone" if architectures is None else f"for the CPU and the cards {architectures}"
    if not torch.cuda.is_available():
        return Finding("native module", told, facts=facts)
    reason = native_module.unavailable(torch.device("cuda"), torch.float32)
    if reason is None or _version("triton") is not None:
        return Finding("native module", told if reason is None else f"{told}; {reason}", facts=facts)
    return Finding("native module", f"{told}; {reason}", "install triton, or the native module for this card", facts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
