"""The command as users start it on several processes."""

import json

from tests.subprocesses import run_python


def test_torchrun_trains_one_run(tmp_path):
    out = tmp_path / "run"
    command = ("-m", "robustdml_ops", "train", "--data", "digits", "--method", "proxy-anchor", "--epochs", "1")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = ("--device", "cpu", "--noise", "symmetric:0.3", "--out", str(out))
    run = run_python(*launcher, *command, *options, OMP_NUM_THREADS="1", ROBUSTDML_CACHE=str(tmp_path / "cache"))
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("Recall@1") == 1
    assert len((out / "history.jsonl").read_text().splitlines()) == 1
    assert json.loads((out / "metrics.json").read_text())["precision_at_1"] > 0.5
    assert (out / "report.html").stat().st_size > 10_000
