"""Which processes still run: asked through the store when a collective fails.

The first process that fails sets an alarm. A thread of each process looks for it once a second and answers with what
the process is doing. So a process answers while it runs, though its main thread waits or is busy, and every process
learns of a failure that its own connections do not show. Who has not answered in time has ended.
"""

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

# Seconds between two looks for the alarm.
LOOK = 1.0
# Longest wait for an answer, in seconds.
PATIENCE = 8.0
_FAILED = "failed: "
# The default store "of" torch.distributed, and what "is" the connection to it.
_connections: dict[str, Any] = {}


class Backward:
    """Lives as long as PyTorch runs a backward, which calls it at the end and drops it without a call if it raises.

    So all errors are heard of, also those in PyTorch's own nodes.
    """

    def __init__(self, ended: list[bool]) -> None:
        self._ended = ended

    def __call__(self) -> None:
        """The backward has ended without an error."""
        self._ended.append(True)


class RollCall:
    """The alarm and the answers of processes ``ranks``; ``name`` is the same on all, and was never used before."""

    def __init__(self, name: str, rank: int, ranks: Sequence[int], timeout: timedelta) -> None:
        self.doing = "is elsewhere"  # of the main thread, for the others' error messages
        self.alarm = False
        self._ranks, self._patience = ranks, min(PATIENCE, max(timeout.total_seconds(), 3 * LOOK))
        self._keys = [f"{name}/{place}" for place in range(len(ranks))]
        self._alarm_key, self._verdict_key, self._own_key = f"{name}/alarm", f"{name}/verdict", self._keys[rank]
        self._store = _own_connection()
        self._answered = threading.Lock()
        self._backwards: list[tuple[weakref.ref[Backward], list[bool]]] = []
        self._failed_backward = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="robustdml_ops roll call", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LOOK)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK):
            self.backward_has_failed()
            try:
                if self._store.check([self._alarm_key]):
                    self.alarm = True
                    return self._answer(self.doing)
            except RuntimeError:  # the store has ended: nobody can ask any more
                return None

    def _answer(self, text: str) -> None:
        """Write the answer of this process, once."""
        if self._answered.acquire(blocking=False):
            self._store.set(self._own_key, text)

    def new_backward(self) -> "Backward":
        """What PyTorch has to call at the end of the backward that runs now."""
        ended: list[bool] = []
        backward = Backward(ended)
        self._backwards.append((weakref.ref(backward), ended))
        return backward

    def backward_has_failed(self) -> bool:
        """Whether a backward of this process has raised; the other processes are notified."""
        # No destructor tells: a signal that comes in the meantime would raise in it, and be lost.
        for entry in list(self._backwards):
            backward, ended = entry
            if backward() is not None:
                continue
            with suppress(ValueError):  # the other thread was quicker
                self._backwards.remove(entry)
            if not ended:
                self._failed_backward = True
                with suppress(RuntimeError):  # the store may have ended
                    self.ring("an error in its backward, which it has raised itself")
        return self._failed_backward

    def ring(self, failure: str = "") -> None:
        """Tell all processes that this one has failed, for its own reason or without one; raise without a store."""
        self._answer(_FAILED + failure if failure else self.doing)
        self._store.set(self._alarm_key, "")
        self._store.get(self._alarm_key)  # a write alone goes into the void without an error

    def call(self) -> str:
        """Ring, wait for the answers, and tell who has failed, who has ended, or what each process is doing."""
        try:
            self.ring()
            return self._verdict()
        except RuntimeError:
            return (
                "a process has ended, and which one can't be told: the store that rank 0 or the launcher holds has "
                "ended as well"
            )

    def _verdict(self) -> str:
        """Return what the first process concludes once all answers are there, one is a failure, or patience ends."""
        answers: dict[int, str] = {}
        failed: list[str] = []
        waited, before = 0.0, time.monotonic()
        while not failed and len(answers) < len(self._ranks) and waited < self._patience:
            if self._store.check([self._verdict_key]):
                verdict: str = self._store.get(self._verdict_key).decode()
                return verdict
            for rank, key in zip(self._ranks, self._keys, strict=True):
                if rank not in answers and self._store.check([key]):
                    answers[rank] = self._store.get(key).decode()
            failed = [
                f"rank {rank}: {text[len(_FAILED) :]}" for rank, text in answers.items() if text.startswith(_FAILED)
            ]
            time.sleep(0.1)
            now = time.monotonic()
            waited, before = waited + min(now - before, LOOK), now  # a pause of all processes is no silence of one
        silent = [
            f"rank {rank} does not answer: it has ended or is stopped" for rank in self._ranks if rank not in answers
        ]
        verdict = "; ".join(failed or silent or [f"rank {rank} {text}" for rank, text in sorted(answers.items())])
        if not (failed or silent):
            verdict += ". All of them run: one has left out a call, the network fails, or the timeout is too short"
        self._store.set(self._verdict_key, verdict)
        time.sleep(0.5)  # the others read it before the store ends with this process
        return verdict


def meet(name: str, rank: int, ranks: Sequence[int], timeout: timedelta) -> list[int]:
    """Wait until all ``ranks`` have come here; return those that have not in time."""
    store = dist.distributed_c10d._get_default_store()
    keys = {other: f"{name}/{other}" for other in ranks}
    store.set(keys[rank], "")
    end = time.monotonic() + timeout.total_seconds()
    while not store.check(list(keys.values())):
        if time.monotonic() > end:
            return [other for other, key in keys.items() if not store.check([key])]
        time.sleep(0.02)
    return []


def _own_connection() -> Any:
    """A connection of its own for the threads of a process: the main thread may block the store's for minutes."""
    store = dist.distributed_c10d._get_default_store()
    if _connections.get("of") is not store:
        c10d: Any = dist  # PyTorch's types leave out both stores
        _connections["of"] = store
        while isinstance(store, c10d.PrefixStore):
            store = store.underlying_store
        if isinstance(store, c10d.TCPStore):
            store = c10d.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
            store.set_timeout(timedelta(seconds=5))  # of an answer; connecting may take longer
        _connections["is"] = store
    return _connections["is"]
