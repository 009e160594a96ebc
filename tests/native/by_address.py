"""How tests call the sums over labels by address: on the CPU, and the CUDA kernels in emulation."""

from dataclasses import dataclass

import numpy as np

SUFFIX = {np.float32: "f32", np.float64: "f64"}
DTYPES = list(SUFFIX)


@dataclass
class Device:
    """Where the functions run; ``name`` is "cpu" or "emulated"."""

    name: str
    module: object
    threads: int = 2
    parts: int = 3

    @classmethod
    def of(cls, request):
        """The device of a fixture's parameter."""
        return cls(request.param, request.getfixturevalue("native" if request.param == "cpu" else "emulated"))

    def call(self, function, dtype, chunk, labels=None, partials_of=None, **arguments):
        """Pass ``labels`` as the device reads them, and poisoned memory for partial sums over ``partials_of`` columns.

        ``arguments`` are numbers, and arrays that are passed by address.
        """
        passed = {
            name: value.ctypes.data if isinstance(value, np.ndarray) else value for name, value in arguments.items()
        }
        if self.name == "cpu":
            passed["threads"] = self.threads
            if labels is not None:
                order = np.argsort(labels, kind="stable")
                sorted_labels = labels[order]
                passed |= {"sorted_labels": sorted_labels.ctypes.data, "order": order.ctypes.data}
        else:
            function += "_cuda"
            passed |= {"parts": self.parts, "stream": 0}
            if labels is not None:
                passed["labels"] = labels.ctypes.data
            if partials_of is not None:
                partials = np.full((self.parts, 2, partials_of), np.nan, dtype)
                passed["partials"] = partials.ctypes.data
        getattr(self.module, f"{function}_{SUFFIX[dtype]}")(chunk, **passed)
