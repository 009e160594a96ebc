"""A batch of random calls, and what it found: what ``make fuzz`` runs, each in one of its processes."""

import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import SMALL_CHUNKS
from tests.every_call import EVERY
from tests.fuzz import hostile
from tests.fuzz.table import TRIALS

BATCH = 100
WRONG_CALLS = 5  # one batch in so many is of calls that are wrong in an argument


class Job(NamedTuple):
    """One batch."""

    name: str  # of a trial; "wrong NAME" of a call that is wrong in one argument
    number: int
    seed: int  # of the run
    cases: int

    @property
    def own_seed(self) -> int:
        return zlib.crc32(f"{self.seed}:{self.name}:{self.number}".encode())


def jobs_of(cases: int, seed: int) -> Iterator[Job]:
    """Batches that have ``cases`` in all: of all trials in turn, and of all wrong calls in turn."""
    turns = {False: list(TRIALS), True: [f"wrong {name}" for name in EVERY]}
    taken = {False: 0, True: 0}
    for place in range(0, cases, BATCH):
        wrong = place // BATCH % WRONG_CALLS == WRONG_CALLS - 1
        number, turn = divmod(taken[wrong], len(turns[wrong]))
        taken[wrong] += 1
        yield Job(turns[wrong][turn], number, seed, min(BATCH, cases - place))


def run(job: Job) -> dict[str, object]:
    """A batch's line."""
    torch.use_deterministic_algorithms(True)  # memory that nobody has written is NaN
    torch.set_num_threads(2 if job.number % 5 == 4 else 1)

    @hypothesis.seed(job.own_seed)
    @settings(
        max_examples=job.cases,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def judge(data: st.DataObject) -> None:
        if job.name.startswith("wrong "):
            name = job.name.removeprefix("wrong ")
            hostile.judge(name, *data.draw(hostile.wrong_calls(name)))
        else:
            TRIALS[job.name](data.draw).judge()

    started, finding = time.time(), None
    with pytest.MonkeyPatch.context() as patch:
        if job.number % 3:  # small cases then cross many boundaries
            for place in SMALL_CHUNKS:
                patch.setattr(place, lambda *_: 7)
        try:
            judge()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            each = getattr(error, "exceptions", [error])
            finding = [f"{type(e).__name__}: {e}\n" + "\n".join(getattr(e, "__notes__", [])) for e in each]
    seconds = round(time.time() - started, 2)
    return {"name": job.name, "batch": job.number, "cases": job.cases, "seconds": seconds, "finding": finding}
