"""Peak memory of a process between two calls, on Linux."""

import ctypes
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> int | None:
    """Return free memory to the system and reset the peak; resident bytes, None where there is no /proc."""
    if not _CLEAR.exists():
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    _CLEAR.write_text("5")
    return _resident("VmRSS")


def peak() -> int | None:
    """Peak bytes since `forget_peak`; None where there is no /proc."""
    return _resident("VmHWM") if _CLEAR.exists() else None


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
