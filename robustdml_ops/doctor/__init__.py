"""``python -m robustdml_ops.doctor``: examines this machine and says what to do about each fault.

It needs no package beyond the library's own dependencies, so that it runs where something is missing.
"""

from robustdml_ops.doctor.command import main

__all__ = ["main"]
