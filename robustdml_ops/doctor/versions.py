"""Versions, devices, and whether the native module fits them."""

import platform
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import robustdml_ops
from robustdml_ops.backends import native_module
from robustdml_ops.doctor.finding import Finding

# Optional packages, and NumPy.
_PACKAGES = ("numpy", "triton", "pytorch-metric-learning")
_DRIVER = Path("/proc/driver/nvidia/version")


def versions() -> Finding:
    """Versions of Python, this package, PyTorch and the packages that they may use."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "robustdml_ops": robustdml_ops.__version__,
        "torch": str(torch.__version__),
    }
    found.update((name, _version(name)) for name in _PACKAGES)
    told = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    return Finding("versions", f"{told}; {platform.platform()}", facts={**found, "platform": platform.platform()})


def devices(driver_file: Path = _DRIVER) -> Finding:
    """The processor, the CUDA devices and their driver."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cards = [_card(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
        seen = torch.cuda.device_count()
    built, driver = torch.version.cuda, _driver(driver_file)
    told = f"{platform.machine()} CPU; " + (", ".join(cards) if cards else "no CUDA device")
    told += "" if driver is None else f"; NVIDIA driver {driver}"
    told += "" if built is None else f", PyTorch built for CUDA {built}"
    facts = {"cuda_devices": cards, "torch_cuda": built, "driver": driver}
    complaint = "; ".join(str(one.message).splitlines()[0] for one in said)
    way_out = None
    if built is not None and not cards and (seen > 0 or complaint):
        way_out = (
            f"PyTorch can't use the card ({complaint or 'it does not say why'}): see what `nvidia-smi` says; a driver "
            f"that is too old for CUDA {built} has to be updated"
        )
    elif built is None and driver is not None:
        way_out = (
            "there is an NVIDIA driver, and this PyTorch is for the CPU alone: to use the card, install one with CUDA"
        )
    return Finding("devices", told, way_out, facts)


def _card(number: int) -> str:
    properties = torch.cuda.get_device_properties(number)
    capability = f"{properties.major}.{properties.minor}"
    return f"{properties.name} (compute capability {capability}, {properties.total_memory / 2**30:.0f} GiB)"


def _driver(file: Path) -> str | None:
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", file.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return found[1] if found else "of an unknown version"


def native() -> Finding:
    """Whether the native module loads, and for which GPUs and driver it was built."""
    reason = native_module.unavailable(torch.device("cpu"), torch.float32)
    if reason is not None:
        there = sorted(file.name for file in Path(robustdml_ops.__file__).parent.glob("_native*"))
        if there:
            reason = f"{reason}; there is {', '.join(there)}, and this is Python {platform.python_version()}"
        return Finding(
            "native module",
            reason,
            "install a wheel for this Python that has it, or reinstall where a C++17 compiler is found: the CPU takes "
            "several times as long without it",
            {"built": False, "there": there},
        )
    library = native_module.library
    architectures = getattr(library, "cuda_architectures", None)
    facts = {"built": True, "cuda_architectures": architectures, "file": library.__file__}
    if architectures is None:
        facts["cuda_left_out"] = library.cuda_left_out
        told = f"for the CPU alone: {library.cuda_left_out}"
    else:
        told = f"for the CPU and the cards {architectures}"
        facts |= {"cuda_runtime": library.cuda_runtime_version, "cuda_driver": library.cuda_driver_version()}
        driver = facts["cuda_driver"]
        told += f", built by CUDA {native_module.dotted(facts['cuda_runtime'])}; "
        told += f"the driver supports CUDA {native_module.dotted(driver)}" if driver else "there is no driver"
    way_out = None
    if torch.cuda.is_available() and (reason := native_module.unavailable(torch.device("cuda"), torch.float32)):
        told += f"; {reason}"
        if _version("triton") is None:
            way_out = "install triton, or the native module for this card"
    return Finding("native module", told, way_out, facts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
