"""Worlds of one to four gloo processes on this machine, each started once, in which many cases run.

    python -m tests.distributed.worlds FOLDER [SIZE ...] [--short]

A case is a function of its place in the world; it runs on all processes, and fails where one of them raises. As the
interpreter that runs them forks, PyTorch is imported once for all worlds.
"""

import copy
import multiprocessing
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from robustdml_ops.distributed import shard_classes

MODULES = ("losses", "pairs", "ids", "factors", "prism", "training", "drawn", "starting", "growth", "imports")
MODULES += ("replicas", "wrappers", "backward", "observed", "errors")
TIMEOUT = timedelta(seconds=60)
# Samples of each process: unequal numbers, and none.
SIZES = {1: (10,), 2: (7, 3), 3: (5, 0, 3), 4: (3, 1, 0, 6)}
# Classes: with four processes the last one has none.
CLASSES = 9


@dataclass(frozen=True)
class Place:
    """Where a case runs."""

    rank: int
    size: int
    mesh: DeviceMesh
    folder: Path  # the same for all worlds

    @property
    def own(self) -> slice:
        """Places of own samples in a batch of all."""
        first = sum(SIZES[self.size][: self.rank])
        return slice(first, first + SIZES[self.size][self.rank])

    @property
    def batch_size(self) -> int:
        """Samples of all processes."""
        return sum(SIZES[self.size])


# Cases in which a process ends, after all others of their world, and its rank.
ENDING = {"errors.a_process_dies": 2}
Case = Callable[[Place], None]
CASES: dict[tuple[int, str], Case] = {}
# Cases that the short suite leaves out, beside those of three and four processes.
NIGHTLY: set[tuple[int, str]] = set()


def case(*sizes: int) -> Callable[[Case], Case]:
    """Run a function in worlds of these sizes, by default of all."""

    def register(function: Case) -> Case:
        module = function.__module__.rpartition("_")[2]
        for size in sizes or SIZES:
            CASES[size, f"{module}.{function.__name__}"] = function
        return function

    return register


def register(label: str, function: Case, *sizes: int) -> None:
    """Name a case of the module that calls this, and run it in worlds of these sizes."""
    function.__name__, function.__module__ = label, sys._getframe(1).f_globals["__name__"]
    case(*sizes)(function)


def sharded(place: Place, loss: nn.Module) -> Any:
    """A copy of the loss whose classes are sharded."""
    return shard_classes(copy.deepcopy(loss), place.mesh, backbone_gradients="summed")


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def batches_of(place: Place, count: int, D: int, classes: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings and labels of all processes."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        X = torch.randn(place.batch_size, D, generator=generator, dtype=torch.float64)
        yield X, torch.randint(classes, (len(X),), generator=generator)


def backward_alike(place: Place, many: Any, found: Tensor, expected: Tensor) -> None:
    """Compare the loss of all processes, or its terms that are here, with that of one, and call backward on both."""
    here: Any = ...
    if expected.dim():  # of own classes, or of own samples
        by_class = len(expected) == getattr(many, "num_classes", None)
        here = slice(many.shards.first, many.shards.last) if by_class else place.own
    upstream = torch.linspace(1, 2, expected.numel(), dtype=torch.float64).view(expected.shape)
    close(found, expected[here])
    (expected * upstream).sum().backward()
    (found * upstream[here]).sum().backward()


def load_cases() -> None:
    for name in MODULES:
        import_module(f"tests.distributed.cases_{name}")


def run_world(size: int, folder: Path, short: bool) -> None:
    """Write what each case has raised, or None, for each rank; ``short`` without those that are nightly."""
    context = multiprocessing.get_context("fork")
    # As torchrun's agent: the store lives on when a process dies.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [context.Process(target=_run, args=(rank, size, folder, store.port, short)) for rank in range(size)]
    for process in processes:
        process.start()
    end = time.monotonic() + 900  # cases that are compiled take minutes on a busy machine
    for process in processes:
        process.join(max(0, end - time.monotonic()))
        if process.is_alive():
            process.kill()


def _run(rank: int, size: int, folder: Path, port: int, short: bool) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    place = Place(rank, size, init_device_mesh("cpu", (size,)), folder)
    results: dict[str, str | None] = {}
    left_out = NIGHTLY if short else set()
    cases = {key[1]: function for key, function in CASES.items() if key[0] == size and key not in left_out}
    for name, function in sorted(cases.items(), key=lambda item: item[0] in ENDING):
        torch.manual_seed(0)
        try:
            function(place)
            if name not in ENDING:
                dist.monitored_barrier(timeout=TIMEOUT)
            results[name] = None
        except BaseException:
            results[name] = traceback.format_exc()
        (folder / f"results-{size}-{rank}").write_bytes(pickle.dumps(results))
        if results[name] is not None:
            break  # the others wait for this one, or are elsewhere in the case


def read_results(folder: Path) -> dict[tuple[int, str], str | None]:
    """What went wrong in each case."""
    found: dict[tuple[int, str], str | None] = {}
    for size, name in CASES:
        errors = []
        for rank in set(range(size)) - {ENDING.get(name)}:
            file = folder / f"results-{size}-{rank}"
            results = pickle.loads(file.read_bytes()) if file.exists() else {}
            error = results.get(name, "was not reached, because of an earlier case")
            errors += [] if error is None else [f"rank {rank}: {error}"]
        found[size, name] = "\n".join(errors) or None
    return found


if __name__ == "__main__":
    from tests.distributed import worlds  # the module that cases register with, not this script's namespace

    worlds.load_cases()
    short = "--short" in sys.argv
    chosen = [int(size) for size in sys.argv[2:] if size != "--short"] or list(SIZES)
    for world_size in chosen:
        worlds.run_world(world_size, Path(sys.argv[1]), short)
    for (world_size, case_name), error in worlds.read_results(Path(sys.argv[1])).items():
        if error and world_size in chosen and not (short and (world_size, case_name) in worlds.NIGHTLY):
            print(world_size, case_name, error)
