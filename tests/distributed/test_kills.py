"""One of four processes is killed at a random moment: the others end soon, and name it or say that they cannot."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

SIZE = 4
STEPS = """
import os, sys
import torch
import torch.distributed as dist

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import ProxyAnchorLoss

torch.set_num_threads(1)
rank, port, holds_store = (int(argument) for argument in sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=bool(holds_store), wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
loss_function = shard_classes(ProxyAnchorLoss(9, 4))
X = torch.randn(3, 4, requires_grad=True)
for step in range(1_000_000):
    loss_function(X, torch.tensor([0, 3, 8])).backward()
    if step % 20 == 0:
        print("runs", flush=True)
"""


@contextlib.contextmanager
def a_world(store_of_rank_0):
    """Four processes that train."""
    store = None if store_of_rank_0 else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port if store else random.Random(time.time_ns()).randrange(20_000, 30_000)
    processes = []
    for rank in range(SIZE):
        command = (sys.executable, "-W", "ignore", "-c", STEPS, rank, port, int(store_of_rank_0 and rank == 0))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(
            subprocess.Popen([str(word) for word in command], **pipes, env=os.environ | {"OMP_NUM_THREADS": "1"})
        )
    try:
        for process in processes:
            assert process.stdout.readline() == "runs\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def suspend(processes, seconds):
    """Stop all of them, as a virtual machine stops while it moves."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    for process in processes:
        process.send_signal(signal.SIGCONT)


def end_of_a_world(victim, store_of_rank_0, delay, pause=0.0):
    """Seconds to the end and last line of each surviving process after ``victim`` was killed, without the pause."""
    with a_world(store_of_rank_0) as processes:
        time.sleep(delay)
        processes[victim].kill()
        survivors = {rank: process for rank, process in enumerate(processes) if rank != victim}
        if pause:
            time.sleep(0.3)
            suspend(survivors.values(), pause)
        start, ends = time.monotonic(), {}
        for rank, process in survivors.items():
            error = process.communicate(timeout=60)[1]
            message = next(line for line in error.splitlines() if "ShardError" in line and "Error:" in line)
            ends[rank] = (time.monotonic() - start, message)
        return ends


@pytest.mark.nightly
@pytest.mark.parametrize("store_of_rank_0", [False, True])
@pytest.mark.parametrize("victim", range(SIZE))
def test_every_survivor_names_the_dead_or_says_that_it_cannot(victim, store_of_rank_0):
    delays = random.Random(victim)
    for _ in range(5):
        ends = end_of_a_world(victim, store_of_rank_0, delays.uniform(0, 1))
        for rank, (seconds, message) in ends.items():
            assert seconds < 15, (rank, message)
            named = set(map(int, re.findall(r"rank (\d) does not answer", message)))
            cannot = "which one can't be told" in message
            assert cannot if store_of_rank_0 and victim == 0 else named == {victim} or (cannot and store_of_rank_0), (
                message
            )


@pytest.mark.nightly
def test_a_pause_of_all_processes_harms_nothing():
    """A minute, and five pauses that are longer than a wait for the alarm."""
    with a_world(store_of_rank_0=True) as processes:
        for seconds in (60, *[2.5] * 5):
            suspend(processes, seconds)
            for process in processes:
                for _ in range(10):
                    assert process.stdout.readline() == "runs\n", process.communicate(timeout=60)[1]


@pytest.mark.nightly
def test_a_pause_of_the_survivors_blames_none_of_them():
    """It begins before rank 2, no neighbour of rank 0, has answered, and is longer than the wait for answers."""
    for delay in (0.0, 0.3, 0.6):
        for rank, (_, message) in end_of_a_world(0, False, delay, pause=12).items():
            assert re.findall(r"rank (\d) does not answer", message) == ["0"], (rank, message)
