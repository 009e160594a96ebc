"""The Slurm script, with what Slurm provides played by a few lines of shell: what does it ask torchrun for?"""

import argparse
import os
import shutil
import subprocess

import pytest
from torch.distributed.run import parse_args

from robustdml.commands import train
from tests.subprocesses import ROOT

# Slurm's programs and the environment, as far as the script needs them.
PROGRAMS = {
    "bin/scontrol": """
case "$*" in
"show hostnames node[3-4]") printf "node3\\nnode4\\n" ;;
*) echo "$@" >> asked ;;
esac""",
    "bin/scancel": 'echo "$@" >> asked && kill -TERM "$(cat torchrun)"',
    "bin/srun": 'test "$1" = --kill-on-bad-exit=1 && shift && exec "$@"',
    "bin/torchrun": 'printf "%s\\n" "$OMP_NUM_THREADS" "$OMP_WAIT_POLICY" "$@"',
    "environment/bin/activate": "true",
}


@pytest.fixture
def asked(tmp_path):
    """Runs the script; returns the threads of a process and what torchrun is asked for."""
    for name, line in PROGRAMS.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)

    def run(*arguments, **changes):
        environment = {
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "ROBUSTDML_ENVIRONMENT": str(tmp_path / "environment"),
            "SLURM_JOB_ID": "123456",
            "SLURM_JOB_NAME": "robustdml",
            "SLURM_JOB_NODELIST": "node[3-4]",
            "SLURM_NNODES": "2",
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_CPUS_PER_TASK": "64",
        }
        script = ROOT / "examples" / "slurm.sbatch"
        done = subprocess.run(
            [shutil.which("bash"), script, *arguments],
            env=environment | changes,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        threads, waiting, *command = done.stdout.splitlines()
        assert waiting == "passive"
        return int(threads), parse_args(command)

    return run


def options_of(torchrun):
    """The command's own options, which it must know."""
    command, *options = torchrun.training_script_args
    assert command == "train"
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    return parser.parse_args(options)


def test_a_process_for_each_card_of_each_node(asked):
    threads, torchrun = asked("--data", "/data/products", "--epochs", "3")
    assert threads == 64 // 8
    assert (torchrun.nnodes, torchrun.nproc_per_node) == ("2", "8")
    assert (torchrun.rdzv_backend, torchrun.rdzv_endpoint) == ("c10d", f"node3:{20000 + 123456 % 20000}")
    assert torchrun.module and torchrun.training_script == "robustdml"
    assert torchrun.max_restarts == 0  # the scheduler starts it again, with --resume
    given = options_of(torchrun)
    assert (given.data, given.epochs, given.resume) == ("/data/products", 3, False)
    threads, torchrun = asked(SLURM_NNODES="1", SLURM_GPUS_ON_NODE="4", SLURM_CPUS_PER_TASK="32")
    assert (threads, torchrun.nnodes, torchrun.nproc_per_node) == (8, "1", "4")


def test_a_run_whose_time_is_up_is_queued_again_when_it_has_saved(asked, tmp_path):
    """Slurm's USR1 becomes a SIGTERM of the step; what torchrun does then comes before the request."""
    torchrun = """
trap 'echo saved >> asked; kill $!; exit 1' TERM
echo $$ > torchrun.new && mv torchrun.new torchrun && kill -USR1 $PPID
sleep 60 & wait $!"""
    (tmp_path / "bin" / "torchrun").write_text(f"#!/bin/sh{torchrun}\n")
    with pytest.raises(AssertionError):
        asked()
    assert (tmp_path / "asked").read_text().splitlines() == ["--signal=TERM 123456", "saved", "requeue 123456"]


def test_a_run_that_was_ended_goes_on(asked, tmp_path):
    out = tmp_path / "out" / "products"
    out.mkdir(parents=True)
    (out / "checkpoint.pt").write_bytes(b"")
    _, torchrun = asked(ROBUSTDML_OUT=str(out))
    given = options_of(torchrun)
    assert given.resume
    assert given.out == out
