"""Calls the native module's functions with random shapes, layouts, labels and numbers of threads, by address.

    python fuzz_binding.py MODULE --seed 0 --calls 500 --at-once 1

Each array is exactly as long as the call may read or write, optional ones are there or null, matrices lie by rows or by
columns with room between them, and start at any element. Outputs are NaN before the call and must not be after it. It
is made to run under sanitizers, which see what is read or written beyond: no torch in here. The products of whole
sweeps are NumPy's OpenBLAS. Functions of one chunk, or value by value, are left to the tests of their rooms, which run
under sanitizers, too.
"""

import argparse
import sys
import threading
from pathlib import Path

import numpy as np
from binding_chunks import self_paced
from binding_draws import Draw
from binding_sweeps import anchor_sweep, class_sweep, contrast_tiles, gemm, pair_sweep, pair_symmetric, similarity

HERE = Path(__file__).parent

CALLS = (self_paced, similarity, anchor_sweep, class_sweep, pair_sweep, pair_symmetric, contrast_tiles)


def one_call(module, seed, number):
    """The call of this number; AssertionError where an output was not written."""
    draw = Draw(np.random.default_rng([seed, number]))
    make = CALLS[number % len(CALLS)]
    if make in CALLS[1:] and not gemm(draw.dtype):
        return
    make(module, draw)
    for place, out in enumerate(draw.outputs):
        missed = np.isnan(out) if out.dtype.kind == "f" else out == -7
        assert not missed.any(), f"call {number} of seed {seed}, {make.__name__}: output {place} was not written"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=1, help="threads of Python that call at the same time")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    import native_builds

    module, failed = native_builds.load(arguments.module), []

    def work(first):
        try:
            for number in range(first, arguments.calls, arguments.at_once):
                one_call(module, arguments.seed, number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(arguments.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    sweeps = "" if gemm(np.float32) else ", none of whole sweeps: NumPy's OpenBLAS is not where its wheels have it"
    print(f"{arguments.calls} calls{sweeps}")


if __name__ == "__main__":
    main()
