"""The first call of a process to each loss and op, under each mode that a program may have set by then.

    python -m tests.reports.first_calls [--all]

Prints ``{mode: {name: what went wrong}}``. Calls are made in processes forked from this one, which has imported all and
computed nothing: whatever the library makes once and keeps is made under the mode. The same call follows without the
mode. A loss of each primitive comes first in a process of its own, and all others follow one of them; ``--all``: each
has a process of its own.
"""

import copy
import json
import os
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch._dynamo
import torch._inductor.runtime.cache_dir_utils  # as the line above and below: what calls import, all children have
import torch.distributed.tensor
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.every_call import EVERY, OPS, Call, first

Results = list[Tensor]


class PassedOn(TorchDispatchMode):
    """A mode that watches, as a profiler's or a counter's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Watched(TorchFunctionMode):
    """As above, a level higher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def default_type(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def plain(call: Call, function: Any) -> Results:
    """Value and gradients."""
    value, gradients = call.differentiated(function, call.changed(torch.clone))
    return [value.detach(), *gradients]


def value_alone(call: Call, function: Any) -> Results:
    return [first(call(function)).detach()]


def transformed(call: Call, function: Any) -> Results:
    """Gradients by torch.func."""
    if not call.differentiable:
        return plain(call, function)
    inputs = call.inputs()
    places = tuple(range(len(call.differentiable)))

    def value(*leaves: Tensor) -> Tensor:
        return first(call(function, **{**inputs, **dict(zip(call.differentiable, leaves, strict=True))})).sum()

    gradients = torch.func.grad(value, places)(*(inputs[name] for name in call.differentiable))
    return [plain(call, function)[0], *gradients]


def fake(call: Call, function: Any) -> Results:
    """Shapes alone, of fake tensors; values in another call."""
    if call.differentiable:  # others may need values, and say so
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            call(function, **call.changed(mode.from_tensor))
    return plain(call, function)


def at_once(call: Call, function: Any) -> Results:
    """Two threads."""
    found: list[Results] = []
    work = lambda: found.append(plain(call, copy.deepcopy(function)))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, other = found
    torch.testing.assert_close(one, other)
    return one


def pickled(call: Call, function: Any) -> Results:
    return plain(call, pickle.loads(pickle.dumps(function)))


# One of each primitive: anchor, classes, pairs, similarity, Lambert's W.
FIRST = ["ProxyAnchorLoss", "ArcFaceLoss", "MultiSimilarityLoss", "LanguageGuidanceLoss", "lambertw"]
How = Callable[[Call, Any], Results]
MODES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], How]] = {
    "default device": (lambda: torch.device("meta"), plain),
    "default dtype float64": (partial(default_type, torch.float64), plain),
    "default dtype bfloat16": (partial(default_type, torch.bfloat16), plain),
    "inference mode": (torch.inference_mode, value_alone),
    "no_grad": (torch.no_grad, value_alone),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), plain),
    "torch.func.grad": (nullcontext, transformed),
    "deterministic algorithms": (deterministic, plain),
    "anomaly mode": (torch.autograd.detect_anomaly, plain),
    "dispatch mode": (PassedOn, plain),
    "function mode": (Watched, plain),
    "fake tensors": (nullcontext, fake),
    "two threads": (nullcontext, at_once),
    "pickled": (nullcontext, pickled),
}
# In training they change a buffer, as BatchNorm does: torch.func refuses both.
REFUSED = {("torch.func.grad", name): "mutate a captured Tensor" for name in ("SuperContrastiveLoss", "SuperLoss")}
ROUNDED = {("autocast", "similarity"): 1e-2}  # its result is of autocast's type


def in_child(work: Callable[[], Any]) -> Any:
    """The result of ``work`` in a forked process, or what it raised, or the signal that ended it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: Any = (True, work())
        except BaseException as error:  # whatever it is, it is the answer
            answer = (False, f"{type(error).__name__}: {error} | {traceback.format_exc()[-400:]}")
        with os.fdopen(write, "wb") as out:
            out.write(pickle.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        content = told.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(content) if content else (False, f"ended by signal {os.WTERMSIG(status)}")


def numbers(results: Results) -> list[Any]:
    return [result.detach().double().numpy() for result in results]


def right(name: str) -> list[Any]:
    """What the call gives in a process without modes."""
    torch.manual_seed(0)
    call = EVERY[name]
    return numbers(plain(call, call.make()))


def under(name: str, mode: str) -> tuple[list[Any], list[Any]]:
    """The same under a mode, and then without."""
    torch.manual_seed(0)
    call, (enter, how) = EVERY[name], MODES[mode]
    function = call.make()
    torch.manual_seed(0)
    again = call.make()
    inputs = call.inputs()
    ready = Call(call.make, lambda: dict(inputs), call.differentiable, call.settings)  # made without the mode
    with enter():
        results = how(ready, function)
    return numbers(results), numbers(plain(call, again))


def compare(name: str, mode: str, expected: list[Any]) -> str | None:
    """What went wrong, or None."""
    try:
        found = under(name, mode)
    except Exception as error:  # whatever it is, it is told
        told = f"{type(error).__name__}: {error} | {traceback.format_exc()[-400:]}"
        return None if REFUSED.get((mode, name), "no such words") in told else told
    if (mode, name) in REFUSED:
        return "not refused"
    tolerance = ROUNDED.get((mode, name), 1e-9)
    for what, results in zip(("under the mode", "after it"), found, strict=True):
        if len(results) < (1 if MODES[mode][1] is value_alone and what == "under the mode" else len(expected)):
            return f"{what}: {len(results)} results"
        for one, other in zip(results, expected, strict=False):
            try:
                torch.testing.assert_close(
                    torch.from_numpy(one), torch.from_numpy(other), rtol=tolerance, atol=tolerance
                )
            except AssertionError as error:
                return f"{what}: {error}"
    return None


def compare_all(names: list[str], mode: str, expected: dict[str, list[Any]]) -> dict[str, str | None]:
    """What went wrong, by name, one after the other in one process."""
    return {name: compare(name, mode, expected[name]) for name in names if mode != "pickled" or name not in OPS}


def main(each: bool) -> None:
    """Print what went wrong."""
    warnings.simplefilter("ignore")  # of anomaly mode; what is compared are values
    good, expected = in_child(lambda: {name: right(name) for name in EVERY})
    assert good, expected
    first_ones = list(EVERY) if each else FIRST
    wrong: dict[str, dict[str, str]] = {mode: {} for mode in MODES}
    for mode in MODES:
        for place, name in enumerate(first_ones):
            others = [other for other in EVERY if other not in first_ones] if place == 0 else []
            good, told = in_child(partial(compare_all, [name, *others], mode, expected))
            answers = told if good else {name: told}
            wrong[mode] |= {key: value for key, value in answers.items() if value is not None}
    json.dump(wrong, sys.stdout)


if __name__ == "__main__":
    main("--all" in sys.argv)
